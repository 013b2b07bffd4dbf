/// Makes the list of a contract's laws, and a macro that hands the list to another macro.
///
/// The names are written once; the tests of every backend and the matrix of known-bad ones are made
/// from them.
macro_rules! law_list {
    ($(#[$doc:meta])* $each:ident, $module:ident, $bench:ty, $dollar:tt, [$($law:ident,)+]) => {
        /// All laws of this contract.
        pub fn all() -> Vec<$crate::laws::LawOf<$bench>> {
            vec![$($crate::laws::LawOf::new(stringify!($law), |bench| Box::pin($law(bench)))),+]
        }

        $(#[$doc])*
        #[macro_export]
        macro_rules! $each {
            ($dollar run:path) => {
                $crate::__law_tests!($module, $dollar run, [$($law,)+]);
            };
        }
    };
}
pub(crate) use law_list;

/// One test per law. Used by the macros of the contracts.
#[doc(hidden)]
#[macro_export]
macro_rules! __law_tests {
    ($module:ident, $run:path, [$($law:ident,)+]) => {
        $(
            #[test]
            fn $law() {
                let laws = $crate::laws::$module::all();
                let law = laws.iter().find(|law| law.name == stringify!($law));
                let law = law.expect("the list of tests is made from the list of laws");
                if let Err(broken) = $run(law) {
                    panic!("{} is broken: {broken}", law.name);
                }
            }
        )+
    };
}
