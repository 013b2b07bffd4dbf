//! Types of PostgreSQL, each with its edge values and a way to make more.

use super::generate::Run;

/// What keeps a value from arriving through some source or in some target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quirk {
    None,
    /// JSON with `\u0000`, which the server stores and cannot convert.
    NulInJson,
    /// The JSON null, which documents do not tell from an SQL NULL.
    JsonNull,
    /// An array of JSON whose elements are arrays, which a change log and documents do not tell from one of two dimensions.
    NestedJson,
    /// An array that does not count from 1, which documents have as text.
    Bounds,
}

/// A value as an SQL expression.
#[derive(Debug, Clone)]
pub(super) struct Value {
    pub(super) sql: String,
    pub(super) quirk: Quirk,
}

/// A type with its values.
#[derive(Debug)]
pub(super) struct Type {
    pub(super) name: String,
    pub(super) values: Vec<Value>,
}

/// Types of a test's own.
pub(super) const OWN: &str = r#"CREATE EXTENSION hstore;
CREATE TYPE mood AS ENUM ('calm', 'rough sea', 'NULL', '"');
CREATE DOMAIN d_text AS text CHECK (length(VALUE) < 1000);
CREATE DOMAIN d_bytes AS bytea;
CREATE DOMAIN d_json AS jsonb;
CREATE DOMAIN d_numeric AS numeric(40, 10);
CREATE DOMAIN d_numbers AS int[];
CREATE TYPE pair AS (a int, b text, c jsonb, d bytea, e numeric, f timestamptz, g text[]);
CREATE TYPE span AS RANGE (SUBTYPE = numeric);"#;

/// Numbers, times and other scalars: the type, and its edge values.
const SCALARS: &[(&str, &[&str])] = &[
    ("bool", &["t", "f"]),
    ("int2", &["-32768", "32767", "0"]),
    ("int4", &["-2147483648", "2147483647"]),
    ("int8", &["-9223372036854775808", "9223372036854775807", "9007199254740993"]),
    ("float4", &["NaN", "Infinity", "-Infinity", "-0", "1e-45", "3.4028235e38", "0.1", "16777217"]),
    (
        "float8",
        &[
            "NaN",
            "Infinity",
            "-Infinity",
            "-0",
            "5e-324",
            "1.7976931348623157e308",
            "0.30000000000000004",
            "1e22",
            "1e23",
            "100",
        ],
    ),
    ("numeric", &["NaN", "Infinity", "-Infinity", "0", "-0.000", "1.10", "1e1000", "1e-1000", "100"]),
    ("numeric(40,12)", &["0", "1.5", "-9999999999999999999999999999.999999999999"]),
    ("money", &["-92233720368547758.08", "92233720368547758.07", "0", "1234.5", "-0.01"]),
    (
        "date",
        &[
            "infinity",
            "-infinity",
            "4714-11-24 BC",
            "5874897-12-31",
            "0001-01-01",
            "0044-03-15 BC",
            "2000-02-29",
            "10000-01-01",
        ],
    ),
    ("time", &["00:00:00", "24:00:00", "23:59:59.999999"]),
    ("timetz", &["00:00:00+15:59:59", "24:00:00-15:59", "12:00:00.5+05:30", "01:02:03-00:00:01"]),
    (
        "timestamp",
        &[
            "infinity",
            "-infinity",
            "4714-11-24 00:00:00 BC",
            "294276-12-31 23:59:59.999999",
            "0001-01-01 00:00:00",
            "2026-01-02 03:04:05.678901",
            "0044-03-15 12:00:00 BC",
        ],
    ),
    (
        "timestamptz",
        &[
            "infinity",
            "-infinity",
            "4714-11-24 00:00:00+00 BC",
            "294276-12-31 23:59:59.999999+00",
            "0001-01-01 00:00:00+00",
            "2026-01-02 03:04:05.678901+02",
            "0044-03-15 12:00:00+00 BC",
            "10000-01-01 00:00:00+00",
        ],
    ),
    (
        "interval",
        &[
            "0",
            "-1 day +02:03:04",
            "1 year -2 mons +3 days -04:05:06.789",
            "178000000 years",
            "-178000000 years 1 sec",
            "-00:00:00.000001",
            "-1 year 1 day",
            "1 mon",
            "-2 mons +1 day",
            "2562047788:00:54.775807",
        ],
    ),
    (
        "uuid",
        &[
            "00000000-0000-0000-0000-000000000000",
            "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
            "ffffffff-ffff-ffff-ffff-ffffffffffff",
        ],
    ),
    ("inet", &["::1", "10.0.0.0/8", "1.2.3.4", "fe80::1/64", "0.0.0.0/0"]),
    ("cidr", &["10.0.0.0/8", "::/0"]),
    ("macaddr", &["08:00:2b:01:02:03"]),
    ("macaddr8", &["08:00:2b:01:02:03:04:05"]),
    ("bit(5)", &["10101", "00000"]),
    ("varbit", &["", "1", "0000000000000000000000000000000000000000000000000000000000000000000001"]),
    ("point", &["(0,-0)", "(NaN,Infinity)", "(0.1,1e300)"]),
    ("line", &["{1,2,3}"]),
    ("lseg", &["[(0,0),(1,1)]"]),
    ("box", &["(2,2),(1,1)"]),
    ("path", &["((0,0),(1,1))", "[(0,0),(1,1)]"]),
    ("polygon", &["((0,0),(1,1),(2,0))"]),
    ("circle", &["<(0,0),1.5>"]),
    ("int4range", &["empty", "[1,10)", "(,)", "[5,)"]),
    ("numrange", &["[1.10,2.50]", "(,NaN]", "empty"]),
    ("tsrange", &["[2026-01-01 00:00:00,infinity]", "[\"0044-03-15 12:00:00 BC\",)"]),
    ("tstzrange", &["[2026-01-01 00:00:00+02,2026-01-02 00:00:00+00)"]),
    ("daterange", &["[2026-01-01,2026-02-01)", "[-infinity,infinity]"]),
    ("int4multirange", &["{}", "{[1,2),[5,9)}"]),
    ("span", &["[0.10,9.90)"]),
    ("tsvector", &["", "'a':1A 'b c':2,3B 'it''s':4", "'\\\\x'"]),
    ("tsquery", &["'a' & !'b' | 'c d':*"]),
    ("jsonpath", &["$.\"a\"[*]?(@ > 1)"]),
    ("pg_lsn", &["0/0", "FFFFFFFF/FFFFFFFF"]),
    ("oid", &["0", "4294967295"]),
    ("xid", &["4294967295"]),
    ("xid8", &["18446744073709551615"]),
    ("tid", &["(4294967295,65535)"]),
    ("pg_snapshot", &["10:20:10,14,15"]),
    ("int2vector", &["1 -2", ""]),
    ("oidvector", &["1 4294967295"]),
    ("regtype", &["integer"]),
    ("\"char\"", &["a", "\"", "\\200", ""]),
    ("name", &["", "a \"name\"", "NULL"]),
    ("mood", &["calm", "rough sea", "NULL", "\""]),
    (
        "pair",
        &[
            "(,,,,,,)",
            "(1,\"a \"\"b\"\" \\\\ ,)\",\"{\"\"x\"\": [1, 2.50, null]}\",\"\\\\x00ff\",1.10,\"2026-01-02 03:04:05+00\",\"{a,NULL,\"\"NULL\"\"}\")",
            "(7,\"\",,\"\\\\x\",NaN,infinity,{})",
            "(8,,null,,,,)",
            "(9,,,,,,\"[3:4]={a,null}\")",
        ],
    ),
    (
        "hstore",
        &["", "\"a\"=>\"1\", \"b\"=>NULL", "\"q\\\"\\\\\"=>\"x=>y, NULL\", \"\"=>\"\"", "NULL=>\"NULL\", a=>\"true\""],
    ),
    ("d_numeric", &["1.5", "-0.0000000001"]),
    ("d_numbers", &["{}", "{1,NULL,3}"]),
    ("xml", &["<a b=\"c\">x &amp; y</a>", "text only", "<?xml version=\"1.0\"?><a/>"]),
];

/// Types whose values are text, bytes or JSON.
const TEXTS: [&str; 5] = ["text", "varchar(200)", "char(40)", "bpchar", "d_text"];
const BYTES: [&str; 2] = ["bytea", "d_bytes"];
const JSON: [&str; 3] = ["json", "jsonb", "d_json"];

/// Arrays are made of these.
const ELEMENTS: [&str; 25] = [
    "bool",
    "int2",
    "int4",
    "int8",
    "float4",
    "float8",
    "numeric",
    "money",
    "date",
    "timestamp",
    "timestamptz",
    "interval",
    "uuid",
    "inet",
    "varbit",
    "box",
    "point",
    "int4range",
    "mood",
    "pair",
    "hstore",
    "d_numeric",
    "tsvector",
    "span",
    "timetz",
];

/// A text literal of this type, whatever is in it.
fn literal(text: &str, name: &str) -> String {
    format!("$wk${text}$wk$::{name}")
}

fn plain(sql: String) -> Value {
    Value { sql, quirk: Quirk::None }
}

/// Random values of a scalar type; none where the edges are all there is to it.
fn random(run: &Run, name: &str) -> Option<String> {
    // The oldest day that every type of time has is of 4714 BC.
    let era = |run: &Run| if run.below(4) == 0 { " BC" } else { "" };
    let day = |run: &Run, era: &str| {
        let year = 1 + run.below(if era.is_empty() { 9_999 } else { 4_713 });
        format!("{year:04}-{:02}-{:02}", 1 + run.below(12), 1 + run.below(28))
    };
    let clock = |run: &Run| {
        format!("{:02}:{:02}:{:02}.{:06}", run.below(24), run.below(60), run.below(60), run.below(1_000_000))
    };
    let era = era(run);
    Some(match name {
        "int2" => (run.bits() as i16).to_string(),
        "int4" => (run.bits() as i32).to_string(),
        "int8" => run.bits().cast_signed().to_string(),
        "float4" => format!("{:e}", f32::from_bits(0x7f7f_ffff & run.bits() as u32)),
        "float8" => format!("{:e}", run.real()),
        "numeric" => run.decimal(1_000, 1_000),
        "numeric(40,12)" => run.decimal(28, 12),
        "d_numeric" => run.decimal(30, 10),
        "money" => run.decimal(15, 2),
        "date" => format!("{}{era}", day(run, era)),
        "time" => clock(run),
        "timestamp" => format!("{} {}{era}", day(run, era), clock(run)),
        "timestamptz" => format!("{} {}+{:02}{era}", day(run, era), clock(run), run.below(15)),
        "interval" => {
            let part = |run: &Run, unit: &str| format!("{} {unit}", run.below(4_000).cast_signed() - 2_000);
            ["years", "mons", "days", "hours", "microseconds"].map(|unit| part(run, unit)).join(" ")
        }
        "uuid" => run.entropy.uuid().to_string(),
        "inet" => {
            format!("{}.{}.{}.{}/{}", run.below(256), run.below(256), run.below(256), run.below(256), run.below(33))
        }
        "varbit" => format!("{:b}", run.bits()),
        "numrange" => format!("[{},)", run.decimal(20, 20)),
        _ => return None,
    })
}

/// The edge values of a type, and random ones.
fn of_type(run: &Run, name: &str) -> Vec<Value> {
    let literal = |text: String| plain(literal(&text, name));
    let cases = run.cases;
    if TEXTS.contains(&name) {
        let edges = ["", " ", "NULL", "null", "{}", "[1]", "\\x00ff", "{\"a\":1}", "\"", "(1,2)", "a  "];
        let random = (0..cases).map(|_| run.text());
        return edges.into_iter().map(str::to_owned).chain(random).map(literal).collect();
    }
    if BYTES.contains(&name) {
        let edges = ["", "00", "00ff5c27", "7b7d", "5c78"].into_iter().map(str::to_owned);
        return edges.chain((0..cases).map(|_| run.hex())).map(|hex| literal(format!("\\x{hex}"))).collect();
    }
    if JSON.contains(&name) {
        let edges = [
            "{}",
            "[]",
            "\"text\"",
            "\"{\\\"a\\\":1}\"",
            "1.50",
            "-0",
            "1e400",
            "12345678901234567890.10",
            "18446744073709551615",
            "true",
            "\"\"",
            "\"null\"",
            "{\"z\":1,\"a\":[1,null,{\"b\":[[]]}]}",
            "[[1,2],[3]]",
            "\"\\\\ \\\" é 𝄞\"",
            "{ \"s p\" :\n 1 }",
        ];
        let mut values: Vec<_> =
            edges.into_iter().map(str::to_owned).chain((0..cases).map(|_| run.json(4))).map(literal).collect();
        values.push(Value { sql: self::literal("null", name), quirk: Quirk::JsonNull });
        if name == "json" {
            values.push(Value { sql: self::literal("{\"a\":\"\\u0000\"}", name), quirk: Quirk::NulInJson });
        }
        return values;
    }
    let edges = SCALARS.iter().find(|(known, _)| *known == name).map_or(&[][..], |(_, edges)| *edges);
    let random = (0..cases).filter_map(|_| random(run, name));
    edges.iter().map(|edge| (*edge).to_owned()).chain(random).map(literal).collect()
}

/// Arrays of these elements: empty, with nulls, of two dimensions, with bounds of their own.
fn arrays(run: &Run, element: &str, elements: &[Value]) -> Vec<Value> {
    let pick = || run.pick(elements).sql.clone();
    let of = |items: &[String]| format!("ARRAY[{}]::{element}[]", items.join(","));
    let mut values = vec![
        plain(of(&[])),
        plain(of(&["NULL".to_owned()])),
        plain(of(&[pick(), "NULL".to_owned(), pick()])),
        plain(format!("ARRAY[[{},NULL],[{},{}]]::{element}[]", pick(), pick(), pick())),
        Value { sql: format!("array_fill({}::{element}, ARRAY[2], ARRAY[0])", pick()), quirk: Quirk::Bounds },
        Value { sql: format!("array_fill({}::{element}, ARRAY[2, 2], ARRAY[1, 2])", pick()), quirk: Quirk::Bounds },
    ];
    values.extend((0..run.cases / 2).map(|_| plain(of(&[pick(), pick(), pick()]))));
    values
}

fn json_arrays(run: &Run, element: &str) -> Vec<Value> {
    let flat = ["1", "\"a,b\"", "{\"a\": [1, 2]}", "true"].map(|json| literal(json, element));
    let nested = Value {
        sql: format!("ARRAY[{},{}]", literal("[1, 2]", element), literal("[3]", element)),
        quirk: Quirk::NestedJson,
    };
    let grid = format!("ARRAY[[{0},{1}],[{1},{0}]]", flat[0], flat[1]);
    let grid = Value { sql: grid, quirk: Quirk::NestedJson };
    let null = Value { sql: format!("ARRAY[{}]", literal("null", element)), quirk: Quirk::JsonNull };
    let bounded =
        Value { sql: format!("array_fill({}, ARRAY[2], ARRAY[0])", literal("null", element)), quirk: Quirk::Bounds };
    let with_null = plain(format!("ARRAY[{},NULL,{}]", run.pick(&flat), run.pick(&flat)));
    vec![
        plain(format!("ARRAY[{}]", flat.join(","))),
        with_null,
        plain(format!("ARRAY[]::{element}[]")),
        nested,
        grid,
        null,
        bounded,
    ]
}

/// All types, with their values.
pub(super) fn all(run: &Run) -> Vec<Type> {
    let names = SCALARS.iter().map(|(name, _)| *name).chain(TEXTS).chain(BYTES).chain(JSON);
    let mut types: Vec<Type> = names.map(|name| Type { name: name.to_owned(), values: of_type(run, name) }).collect();
    for element in ELEMENTS.into_iter().chain(["text", "bytea", "d_text"]) {
        let elements = of_type(run, element);
        types.push(Type { name: format!("{element}[]"), values: arrays(run, element, &elements) });
    }
    for element in ["json", "jsonb"] {
        types.push(Type { name: format!("{element}[]"), values: json_arrays(run, element) });
    }
    types
}
