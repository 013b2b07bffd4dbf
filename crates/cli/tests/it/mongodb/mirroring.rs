//! Mirrors of which a filter or a pipeline says what they get.

use watchkeeper::mongodb::mongodb::Database;
use watchkeeper::mongodb::mongodb::bson::{Document, doc};

use super::SourceFixture;
use crate::workspace::{Running, until};

/// A filter of all operations of rows, and of nothing else.
const ROWS: &str = r#"operations = ["insert", "update", "replace", "delete", "read"]"#;

/// A database that is watched, and a mirror of it in the database of the store.
struct Copied {
    fixture: SourceFixture,
    shop: Database,
}

impl Copied {
    /// With these settings of the source and of the sink beside their URLs.
    fn new(source: &str, sink: &str) -> Self {
        let copied = Self::idle();
        copied.configure(source, sink);
        copied
    }

    fn idle() -> Self {
        let fixture = SourceFixture::new();
        let shop = fixture.database.client().database(&format!("{}_shop", fixture.database.name()));
        fixture.block_on(async { shop.create_collection("orders").await }).expect("it can be made");
        Self { fixture, shop }
    }

    fn configure(&self, source: &str, sink: &str) {
        let here = &self.fixture.url;
        let there = here.replace(self.fixture.database.name(), self.shop.name());
        self.fixture.workspace.write(
            "watchkeeper.toml",
            &format!(
                "[group]\nname = \"shop\"\nstore = \"{here}\"\nlease = \"30s\"\n\n[[stream]]\nname = \"orders\"\n\
                 checkpoint = {{ every = \"50ms\" }}\n\n[stream.source]\nurl = \"{there}\"\n\
                 full_document = \"updateLookup\"\n{source}\n\n[[stream.sink]]\nurl = \"{here}\"\n{sink}\n"
            ),
        );
    }

    fn insert(&self, collection: &str, id: i32) {
        let collection = self.shop.collection::<Document>(collection);
        self.fixture.block_on(async { collection.insert_one(doc! { "_id": id }).await }).expect("it is taken");
    }

    /// The ids in a collection of the mirror that are not tombstones.
    fn copies(&self, collection: &str) -> Vec<i32> {
        let (database, living) = (&self.fixture.database, doc! { "_watchkeeper.deleted": { "$exists": false } });
        let cursor = database.collection::<Document>(collection);
        self.fixture.block_on(async {
            let mut found = cursor.find(living).sort(doc! { "_id": 1 }).await.expect("it can be read");
            let mut ids = Vec::new();
            while found.advance().await.expect("it can be read") {
                ids.push(found.deserialize_current().expect("a document").get_i32("_id").expect("a number"));
            }
            ids
        })
    }

    /// Starts an instance, and waits until a first order is copied.
    fn started(&self, copy: &str) -> Running {
        let running = self.fixture.start("only");
        self.insert("orders", 1);
        until("the order is copied", || self.copies(copy) == [1]);
        running
    }

    fn admin(&self, command: Document) {
        let admin = self.shop.client().database("admin");
        self.fixture.block_on(async { admin.run_command(command).await }).expect("it is taken");
    }

    fn rename(&self, from: &str, to: &str) {
        let name = |collection: &str| format!("{}.{collection}", self.shop.name());
        self.admin(doc! { "renameCollection": name(from), "to": name(to), "dropTarget": true });
    }
}

/// Modes of a sink into a collection for each of the source.
const MODES: [&str; 2] = ["mirror", "versioned"];

fn copies_with(mode: &str, filter: &str) -> String {
    format!("mode = \"{mode}\"\ncollection = \"copy_of_{{collection}}\"\n{filter}")
}

#[test]
fn a_rename_over_a_mirrored_collection_passes_every_filter() {
    for mode in MODES {
        for filter in
            ["namespaces = [\"orders\"]".to_owned(), ROWS.to_owned(), format!("{ROWS}, namespaces = [\"orders\"]")]
        {
            let copied = Copied::new("scope = \"database\"", &copies_with(mode, &format!("filter = {{ {filter} }}")));
            let mut only = copied.started("copy_of_orders");
            copied.insert("staging", 2);
            copied.rename("staging", "orders");
            let to = format!("renamed to {}.orders", copied.shop.name());
            only.says(&["the stream is halted", ".staging", &to, "`watchkeeper checkpoint set orders snapshot`"]);
            only.ends_in_order();
            assert_eq!(copied.copies("copy_of_orders"), [1], "nothing is written after it");
        }
    }
}

#[test]
fn out_over_a_mirrored_collection_passes_every_filter() {
    let filter = format!("filter = {{ {ROWS}, namespaces = [\"orders\"] }}");
    for mode in MODES {
        let copied = Copied::new("scope = \"database\"", &copies_with(mode, &filter));
        let mut only = copied.started("copy_of_orders");
        copied.insert("staging", 2);
        let staging = copied.shop.collection::<Document>("staging");
        let out = staging.aggregate([doc! { "$out": "orders" }]);
        copied.fixture.block_on(async { out.await }).expect("it is taken");
        only.says(&["the stream is halted", &format!("renamed to {}.orders", copied.shop.name())]);
        only.ends_in_order();
    }
}

#[test]
fn a_rename_of_what_is_not_mirrored_is_passed_over() {
    let copied = Copied::new("scope = \"database\"", &copies_with("mirror", "filter = { namespaces = [\"orders\"] }"));
    let mut only = copied.started("copy_of_orders");
    copied.insert("staging", 2);
    copied.rename("staging", "items");
    copied.insert("orders", 3);
    until("the next order is copied", || copied.copies("copy_of_orders") == [1, 3]);
    only.ends_in_order();
    assert_eq!(copied.copies("copy_of_items"), [0; 0]);
}

#[test]
fn a_drop_passes_a_filter_by_operations() {
    for mode in MODES {
        let copied = Copied::new("scope = \"database\"", &copies_with(mode, &format!("filter = {{ {ROWS} }}")));
        let mut only = copied.started("copy_of_orders");
        let orders = copied.shop.collection::<Document>("orders");
        copied.fixture.block_on(async { orders.drop().await }).expect("it can be dropped");
        until("the copy is cleared", || copied.copies("copy_of_orders").is_empty());
        copied.insert("orders", 2);
        until("the next order is copied", || copied.copies("copy_of_orders") == [2]);
        only.ends_in_order();
    }
}

/// Asserts that neither `check` nor `run` takes these settings.
#[track_caller]
fn assert_refused(copied: &Copied, source: &str, sink: &str, parts: &[&str]) {
    copied.configure(source, sink);
    copied.fixture.workspace.run(&["check"]).assert_found(2, parts);
    copied.fixture.workspace.run(&["run"]).assert_refused(2, parts);
}

#[test]
fn filters_that_hide_changes_from_a_mirror_are_refused() {
    let copied = Copied::idle();
    for mode in MODES {
        for (operations, hidden) in [
            ("[\"insert\", \"update\", \"delete\"]", "replace, read"),
            ("[\"insert\"]", "update, replace, delete, read"),
            ("[\"insert\", \"update\", \"replace\", \"read\", \"drop\", \"rename\"]", "delete"),
        ] {
            let sink = copies_with(mode, &format!("filter = {{ operations = {operations} }}"));
            let cause = format!("the filter of sink \"mongodb\" hides {hidden} from a mirror");
            assert_refused(&copied, "scope = \"database\"", &sink, &[&cause, "WK-CONFIG"]);
        }
    }
    copied.configure("scope = \"database\"", "collection = \"log\"\nfilter = { operations = [\"insert\"] }");
    let checked = copied.fixture.workspace.run(&["check"]);
    assert_eq!(checked.code, Some(0), "events may be chosen as one likes: {checked:?}");
}

#[test]
fn pipelines_that_hide_changes_from_a_mirror_are_refused() {
    let copied = Copied::idle();
    for (pipeline, cause) in [
        (r#"[{"$match": {"operationType": {"$in": ["insert", "update", "delete"]}}}]"#, "hides every replace"),
        (r#"[{"$match": {"operationType": {"$ne": "drop"}}}]"#, "hides every drop"),
        (r#"[{"$match": {"fullDocument.total": {"$gte": 100}}}]"#, "chooses by fullDocument.total"),
        (r#"[{"$match": {"ns.coll": "orders"}}]"#, "hides the rename of another collection to orders"),
    ] {
        for mode in MODES {
            let source = format!("scope = \"database\"\npipeline = '{pipeline}'");
            assert_refused(&copied, &source, &copies_with(mode, ""), &[cause, "WK-CONFIG"]);
        }
    }
    let both = r#"[{"$match": {"$or": [{"ns.coll": "orders"}, {"to.coll": "orders"}]}}]"#;
    copied.configure(&format!("scope = \"database\"\npipeline = '{both}'"), &copies_with("mirror", ""));
    let checked = copied.fixture.workspace.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let mut only = copied.started("copy_of_orders");
    copied.insert("staging", 2);
    copied.rename("staging", "orders");
    only.says(&["the stream is halted", "renamed to"]);
    only.ends_in_order();
}

#[test]
fn pipelines_that_take_the_documents_away_from_a_mirror_are_refused() {
    let copied = Copied::idle();
    for (pipeline, cause) in [
        (r#"[{"$set": {"fullDocument": null}}]"#, "drops fullDocument or sets it to null"),
        (r#"[{"$project": {"fullDocument": null, "operationType": 1}}]"#, "drops fullDocument or sets it to null"),
        (
            r#"[{"$set": {"fullDocument": {"$cond": ["$fullDocument.open", "$fullDocument", null]}}}]"#,
            "may set fullDocument to null",
        ),
    ] {
        for mode in MODES {
            let source = format!("collection = \"orders\"\npipeline = '{pipeline}'");
            assert_refused(&copied, &source, &copies_with(mode, ""), &[cause, "$unset", "WK-CONFIG"]);
        }
    }
    let parts = r#"[{"$set": {"fullDocument.checked": true}}, {"$unset": "fullDocument.secret"}]"#;
    copied.configure(&format!("collection = \"orders\"\npipeline = '{parts}'"), &copies_with("mirror", ""));
    let checked = copied.fixture.workspace.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
}

#[test]
fn a_collation_by_which_a_pipeline_may_hide_changes_from_a_mirror_is_refused() {
    let copied = Copied::idle();
    let source = "collection = \"orders\"\ncollation = { locale = \"en\", strength = 2 }\n\
                  pipeline = '[{\"$match\": {\"operationType\": {\"$ne\": \"DELETE\"}}}]'";
    for mode in MODES {
        assert_refused(
            &copied,
            source,
            &copies_with(mode, ""),
            &["compares operationType by a collation", "WK-CONFIG"],
        );
    }
}
