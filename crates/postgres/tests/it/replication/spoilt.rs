//! Connections over which something was asked about tables: the server's process remembers the tables of now, and would decode the log of
//! then with it.

use watchkeeper_core::{Pedigree, Source, StartAt};

use super::bench::{Watch, cx, on_both, shown};

/// The same as an older version has stored it, which says nothing of the publication: it has to be asked for.
fn older(pedigree: &Pedigree) -> Pedigree {
    let mut stored: serde_json::Value = serde_json::from_slice(&pedigree.0).unwrap();
    stored.as_object_mut().unwrap().remove("publication").expect("the publication is remembered");
    Pedigree(serde_json::to_vec(&stored).unwrap().into())
}

#[test]
fn what_was_looked_at_before_does_not_change_how_older_rows_are_reported() {
    let schema = "CREATE TABLE things(id int PRIMARY KEY, k int, v text)";
    on_both(schema, async |base| {
        let source = base.source();
        let mut watch = Watch::open(&source, StartAt::Now).await;
        base.run("INSERT INTO things VALUES (1, 10, 'read')").await;
        let first = watch.changes(1).await.remove(0);
        let (position, known) = (first.position(), first.batch().pedigree.clone().unwrap());
        watch.close().await;
        base.run("INSERT INTO things VALUES (2, 20, 'unread')").await;
        base.run("ALTER TABLE things RENAME v TO w; ALTER TABLE things DROP k; ALTER TABLE things ADD later int").await;
        base.run("INSERT INTO things VALUES (3, 'new')").await;
        let unknown = older(&known);
        for looks in [vec![&known], vec![&unknown], vec![&unknown, &known], vec![&known, &unknown]] {
            for pedigree in &looks {
                source.verify(&cx(), &position, pedigree).await.unwrap();
            }
            let mut watch = Watch::open(&source, StartAt::After(position.clone())).await;
            let reported: Vec<String> = watch.changes(2).await.iter().map(shown).collect();
            let expected = [
                r#"insert {"before":null,"after":{"id":2,"k":20,"v":"unread"}}"#,
                r#"insert {"before":null,"after":{"id":3,"w":"new","later":null}}"#,
            ];
            assert_eq!(reported, expected, "after {} looks", looks.len());
            watch.close().await;
        }
    });
}
