//! Tables that have become something else since they were installed: they are logged, but `check` asks to install them again.

use watchkeeper_core::Source;
use watchkeeper_core::source::Severity;
use watchkeeper_postgres::changelog::{Wake, install};
use watchkeeper_testkit::servers::postgres::Version;

use super::support::Shop;
use crate::support::{block_on, cx};

#[test]
fn a_table_that_install_would_log_better_is_found() {
    for (change, what) in [
        ("ALTER TABLE things ADD body jsonb", "of which the JSON null and the bounds of arrays are not logged"),
        ("ALTER TABLE things ADD numbers int[]", "of which the JSON null and the bounds of arrays are not logged"),
        (
            "ALTER TABLE things ADD parent bigint REFERENCES things ON DELETE SET NULL",
            "has a foreign key since it was installed that leads back to it",
        ),
        ("REINDEX INDEX CONCURRENTLY things_pkey", "has a new index for its key since it was installed"),
    ] {
        for version in Version::ALL {
            block_on(async {
                let shop = Shop::new(version).await;
                let log = shop.log().await;
                assert_eq!(log.check(&cx()).await.unwrap(), [], "{change}");
                shop.run(change).await;
                let found = log.check(&cx()).await.unwrap();
                assert_eq!(found.len(), 1, "{change}: {found:?}");
                assert!(found[0].severity == Severity::Warning && found[0].what.contains(what), "{change}: {found:?}");
                install(&cx(), &shop.client, &["things"], Wake::Notify).await.unwrap();
                assert_eq!(log.check(&cx()).await.unwrap(), [], "{change}, installed again");
            });
        }
    }
}
