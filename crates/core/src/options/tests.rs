use std::time::Duration;

use super::*;

fn options(entries: &[(&str, Setting)]) -> Options {
    let mut options = Options::new("stream.orders", Origin::new("shop.toml:3"));
    for (line, (name, setting)) in entries.iter().enumerate() {
        let origin = Origin::new(format!("shop.toml:{}", line + 4));
        options.insert(*name, WrittenSetting { setting: setting.clone(), origin });
    }
    options
}

fn text(text: &str) -> Setting {
    Setting::Text(text.to_owned())
}

#[test]
fn what_nobody_took_is_refused_with_its_line_and_what_was_meant() {
    let mut options = options(&[("concurency", Setting::Integer(4))]);
    assert_eq!(options.count("concurrency").expect("it is not there"), None);
    let error = options.finish().expect_err("it was not taken");
    assert_eq!(
        error.to_string(),
        "shop.toml:4: stream.orders.concurency: there is no such setting [WK-CONFIG]; did you mean \"concurrency\"?"
    );
}

#[test]
fn what_is_far_from_everything_lists_what_is_known() {
    let mut options = options(&[("zebra", Setting::Integer(4))]);
    let _ = options.count("concurrency");
    let _ = options.text("start");
    let error = options.finish().expect_err("it was not taken").to_string();
    assert!(error.ends_with("known here: concurrency, start"), "{error}");
}

#[test]
fn a_value_of_the_wrong_form_says_what_to_write() {
    for (setting, take) in [
        (Setting::Integer(5), (|options| options.duration("x").map(|_| ())) as fn(&mut Options) -> Result<()>),
        (text("5"), |options| options.duration("x").map(|_| ())),
        (text("64"), |options| options.bytes("x").map(|_| ())),
        (text("sideways"), |options| options.choice("x", &[("up", 1), ("down", 2)]).map(|_| ())),
        (Setting::Flag(true), |options| options.choice("x", &[("up", 1)]).map(|_| ())),
        (Setting::Integer(-1), |options| options.count("x").map(|_| ())),
        (Setting::List(vec![]), |options| options.flag("x").map(|_| ())),
        (text("x"), |options| options.table("x").map(|_| ())),
        (text("x"), |options| options.tables("x").map(|_| ())),
        (Setting::Integer(1), |options| options.texts("x").map(|_| ())),
        (Setting::Flag(true), |options| options.text("x").map(|_| ())),
    ] {
        let error = take(&mut options(&[("x", setting)])).expect_err("it does not fit").to_string();
        assert!(error.starts_with("shop.toml:4: stream.orders.x: ") && error.contains("; write "), "{error}");
    }
}

#[test]
fn a_text_that_means_nothing_is_reported_as_it_was_written() {
    let mut options = options(&[("a", text("5 lightyears")), ("b", text("64")), ("c", text("few"))]);
    let messages = [
        options.duration("a").expect_err("no time").to_string(),
        options.bytes("b").expect_err("no size").to_string(),
        options.count("c").expect_err("no number").to_string(),
    ];
    for (messages, part) in
        messages.iter().zip(["\"5 lightyears\" is not a time", "\"64\" is not a size", "\"few\" is not a whole number"])
    {
        assert!(messages.contains(part), "{messages}");
    }
}

#[test]
fn times_and_sizes_carry_their_unit() {
    let mut options = options(&[("every", text("250ms")), ("most", text("64MiB")), ("rate", text("2 MB"))]);
    assert_eq!(options.duration("every").expect("a time"), Some(Duration::from_millis(250)));
    assert_eq!(options.bytes("most").expect("a size"), Some(64 << 20));
    assert_eq!(options.bytes("rate").expect("a size"), Some(2_000_000));
    options.finish().expect("all is taken");
}

#[test]
fn what_is_missing_says_what_to_write() {
    let error = options(&[]).required("url", "\"sqlite:state.db\"").expect_err("it is missing").to_string();
    assert_eq!(error, "shop.toml:3: stream.orders.url: this is missing [WK-CONFIG]; write url = \"sqlite:state.db\"");
}

#[test]
fn passwords_are_not_shown() {
    for (url, shown) in [
        ("mongodb://ann:secret@db1,db2/shop?replicaSet=rs0", "mongodb://ann:***@db1,db2/shop?replicaSet=rs0"),
        ("postgres://ann@db/shop", "postgres://ann@db/shop"),
        ("mongodb://ann:se@cret@db1/shop", "mongodb://ann:***@db1/shop"),
        ("mongodb://ann:se/cret@db1/shop", "mongodb://ann:***@db1/shop"),
        ("sqlite:state.db", "sqlite:state.db"),
        ("http://search:9200", "http://search:9200"),
    ] {
        assert_eq!(without_password(url), shown);
    }
    let written = WrittenSetting::text("mongodb://ann:secret@db", Origin::new("x"));
    assert!(!format!("{written:?} {:?}", written.setting).contains("secret"));
}

#[test]
fn what_was_taken_still_knows_where_it_was_written() {
    let mut options = options(&[("a", text("1")), ("b", text("2"))]);
    assert_eq!(options.text("b").expect("a text").as_deref(), Some("2"));
    assert_eq!(options.text("b").expect("it is gone"), None);
    assert_eq!(options.wrong("b", "odd").place(), Some("shop.toml:5"));
    assert_eq!(options.wrong("c", "odd").place(), Some("shop.toml:3"));
}

#[test]
fn all_errors_are_collected_and_each_once() {
    let mut options = options(&[
        ("every", text("5 lightyears")),
        ("tabels", text("a")),
        ("folder", Setting::Integer(7)),
        ("count", Setting::Integer(-1)),
    ]);
    let collector = Collector::default();
    options.collect_into(Some(&collector));
    for _ in 0..2 {
        let mut options = options.clone();
        assert_eq!(options.duration("every").expect("it is collected"), None);
        assert_eq!(options.count("count").expect("it is collected"), None);
        options.required("folder", "\"out\"").expect_err("nothing can stand for it");
        options.texts("tables").expect("it is not there");
        options.text("table").expect("it is not there");
        options.finish().expect("it is collected");
    }
    let messages: Vec<_> = collector.take().iter().map(ToString::to_string).collect();
    assert_eq!(messages.len(), 3, "{messages:?}");
    let expected = ["is not a time", "this number is negative", "did you mean \"tables\"?"];
    assert!(expected.iter().zip(&messages).all(|(part, messages)| messages.contains(part)), "{messages:?}");
    options.collect_into(None);
    options.duration("every").expect_err("it is told at once again");
}
