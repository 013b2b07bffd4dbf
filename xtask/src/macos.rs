//! Checks the library as it is compiled on macOS, from any system.
//!
//! `cargo check` does not link, so neither Apple's SDK nor a compiler for it is needed: the C code of dependencies is replaced by nothing,
//! by the scripts in `xtask/foreign`.

use crate::cargo::{Call, root};

/// The system that the library is checked for.
pub(crate) const TARGET: &str = "aarch64-apple-darwin";

/// The check of the library with all of its backends.
pub(crate) fn check() -> Call {
    let call = Call::new(&format!("check --target {TARGET} -p watchkeeper"));
    // There the real tools are at hand, and the SDK is needed to link build scripts.
    if cfg!(target_os = "macos") {
        return call;
    }
    let foreign = root().join("xtask/foreign");
    let tool = |name: &str| foreign.join(name).display().to_string();
    call.with("CC_aarch64_apple_darwin", tool("cc"))
        .with("AR_aarch64_apple_darwin", tool("ar"))
        // Otherwise Apple's own tools are asked for it.
        .with("SDKROOT", foreign.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    #[cfg(not(target_os = "macos"))]
    fn the_tools_that_stand_for_apples_make_empty_files() {
        let folder = std::env::temp_dir().join(format!("watchkeeper-foreign-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let variables = check().variables;
        let tool = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name).expect("it is set");
            std::process::Command::new(&found.1)
        };
        let (object, archive) = (folder.join("a.o"), folder.join("liba.a"));
        let compiled = tool("CC_aarch64_apple_darwin").args(["-c", "a.c", "-o"]).arg(&object).status();
        assert!(compiled.expect("it starts").success() && object.is_file());
        let archived = tool("AR_aarch64_apple_darwin").arg("cq").arg(&archive).arg(&object).status();
        assert!(archived.expect("it starts").success());
        assert_eq!(std::fs::read(&archive).expect("it is there"), b"!<arch>\n");
        std::fs::remove_dir_all(&folder).expect("it can be removed");
    }
}
