//! Values and keys that most tables never hold.

use serde_json::{Value, json};
use watchkeeper_core::Operation;

use crate::log::{logged, with_table};
use crate::support::{Folder, block_on, execute};

#[test]
fn text_that_is_not_utf8_arrives_marked_and_its_keys_stay_apart() {
    let folder = Folder::new();
    block_on(async {
        let client = with_table(&folder, "CREATE TABLE n(id TEXT PRIMARY KEY NOT NULL, x)", "n").await;
        let rows = "INSERT INTO n VALUES
            ('bad', CAST(x'41ff22000a42' AS TEXT)), (CAST(x'ff' AS TEXT), 'x'), (CAST(x'fe' AS TEXT), x'ff');
            UPDATE n SET id = CAST(x'fd' AS TEXT) WHERE x = 'x'";
        execute(&client, rows).await.unwrap();
        let log = logged(&client).await;
        let keys: Vec<_> = log.iter().map(|(operation, key, _)| (*operation, key.as_str())).collect();
        let expected = [
            (Operation::Insert, r#"["bad"]"#),
            (Operation::Insert, r#"[{"$textHex":"FF"}]"#),
            (Operation::Insert, r#"[{"$textHex":"FE"}]"#),
            (Operation::Delete, r#"[{"$textHex":"FF"}]"#),
            (Operation::Insert, r#"[{"$textHex":"FD"}]"#),
        ];
        assert_eq!(keys, expected);
        let body = |at: usize| serde_json::from_str::<Value>(&log[at].2).unwrap();
        assert_eq!(body(0)["after"], json!({ "id": "bad", "x": { "$textHex": "41FF22000A42" } }));
        assert_eq!(body(2)["after"], json!({ "id": { "$textHex": "FE" }, "x": { "$hex": "FF" } }));
        assert_eq!(body(3), json!({ "before": { "id": { "$textHex": "FF" }, "x": "x" }, "after": null }));
        assert_eq!(body(4), json!({ "before": null, "after": { "id": { "$textHex": "FD" }, "x": "x" } }));
    });
}
