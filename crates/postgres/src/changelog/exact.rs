//! Values that the server's JSON functions do not tell exactly.
//!
//! They write the JSON null as they write an SQL NULL, and an array without its bounds. The triggers note such values behind the image of a row,
//! and bodies carry these notes before everything else, so that a body without them is read as it is.

use std::collections::BTreeMap;

use watchkeeper_core::payload::{JsonPayload, JsonRows};
use watchkeeper_core::{Error, Payload, Result, ValueRef, Visit};

use super::changed::value_end;
use super::schema::key_condition;

/// Adds what the triggers need.
///
/// * Behind the last column, an image has a member of a name that no column has: an object of the columns that are not told exactly, each with
///   the text that the server prints of it, or null for a column that is the JSON null.
/// * A row is looked at only where its text may hold such a value, and only in tables that can hold one: others pay nothing. Statement-level
///   triggers know that from when they were installed, so that a table gets it with `install`.
pub(super) const STEP: &str = concat!(
    r#"
-- The condition under which a value of this type is not told exactly, or null if it always is. Elements are named by how deep they lie.
CREATE OR REPLACE FUNCTION {schema}.log_inexact(kind oid, value text, depth int) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $body$
DECLARE
    base pg_type;
    inner_condition text;
    conditions text;
BEGIN
    SELECT * INTO base FROM pg_type WHERE oid = kind;
    WHILE base.typtype = 'd' LOOP
        SELECT * INTO base FROM pg_type WHERE oid = base.typbasetype;
    END LOOP;
    IF base.oid = 'json'::regtype THEN RETURN format('json_typeof(%s) = ''null''', value); END IF;
    IF base.oid = 'jsonb'::regtype THEN RETURN format('jsonb_typeof(%s) = ''null''', value); END IF;
    -- Not the old vectors of the catalog, which begin at 0.
    IF EXISTS (SELECT FROM pg_type e WHERE e.oid = base.typelem AND e.typarray = base.oid) THEN
        inner_condition := {schema}.log_inexact(base.typelem, format('"watchkeeper %s"', depth), depth + 1);
        RETURN format('(strpos(replace(array_dims(%1$s), ''[1:'', ''''), ''['') > 0%2$s)', value, CASE WHEN inner_condition IS NOT NULL
            THEN format(' OR EXISTS (SELECT FROM unnest(%s) AS "watchkeeper %s" WHERE %s)', value, depth, inner_condition) ELSE '' END);
    END IF;
    IF base.typtype = 'c' THEN
        SELECT string_agg({schema}.log_inexact(a.atttypid, format('(%s).%I', value, a.attname), depth + 1), ' OR ') INTO conditions
            FROM pg_attribute a WHERE a.attrelid = base.typrelid AND a.attnum > 0 AND NOT a.attisdropped;
        RETURN '(' || conditions || ')';
    END IF;
    RETURN NULL;
END $body$;

-- What of a row is not told exactly, as an object: a query of the row's text $1, or null where a table holds nothing of that kind.
CREATE OR REPLACE FUNCTION {schema}.log_exact_sql(relation oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog AS $body$
    SELECT format('SELECT json_object_agg(e.name, e.value) FROM (SELECT $1::%s AS image OFFSET 0) AS r CROSS JOIN LATERAL (VALUES %s)
            AS e (name, value, is_inexact) WHERE e.is_inexact', relation::regclass, string_agg(
                format('(%L, %s, %s)', c.attname, CASE WHEN c.is_json THEN 'NULL' ELSE format('(r.image).%I::text', c.attname) END, c.condition),
                ', ' ORDER BY c.attnum))
        FROM (SELECT a.attname, a.attnum, {schema}.log_inexact(a.atttypid, format('(r.image).%I', a.attname), 1) AS condition,
                {schema}.log_inexact(a.atttypid, '', 1) LIKE 'json%' AS is_json
            FROM pg_attribute a WHERE a.attrelid = relation AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> 'v') AS c
        WHERE c.condition IS NOT NULL HAVING count(*) > 0
$body$;

-- An image with what it does not tell exactly. Settings are those of the triggers that call it. An array prints its bounds, and only JSON prints a null, in small letters.
CREATE OR REPLACE FUNCTION {schema}.log_exact(relation oid, image json, row_text text) RETURNS json
LANGUAGE plpgsql STABLE AS $body$
DECLARE
    query text;
    notes json;
BEGIN
    -- Without backslashes: what they mean in a text is a setting of the session.
    IF image IS NULL OR row_text !~
        ']=[{]|[(,{]([^[:alnum:]:, ][^[:alnum:]:,]*)?null([^[:alnum:]:,]*[^[:alnum:]:, ])?[,)}]' THEN RETURN image; END IF;
    query := {schema}.log_exact_sql(relation);
    IF query IS NOT NULL THEN EXECUTE query INTO notes USING row_text; END IF;
    IF notes IS NULL THEN RETURN image; END IF;
    RETURN (left(image::text, -1) || ',"watchkeeper exact":' || notes || '}')::json;
END $body$;

CREATE OR REPLACE FUNCTION {schema}.log_statement_sql(
    relation oid, operation text, is_single boolean, is_virtual boolean, entity text, names text[]) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $body$
DECLARE
    image text := CASE WHEN is_virtual
        THEN format('(SELECT row_to_json("watchkeeper image") FROM (SELECT %s) AS "watchkeeper image")',
            {schema}.log_columns(relation, false, '"watchkeeper row".%I', ', '))
        ELSE 'row_to_json("watchkeeper row".*)' END;
    -- Few rows hold what is not told exactly, so that the rest pays for two looks into its text only.
    exact_image text := CASE WHEN {schema}.log_exact_sql(relation) IS NULL THEN image ELSE format(
        '(SELECT CASE WHEN strpos("watchkeeper text", ''null'') > 0 OR strpos("watchkeeper text", '']={'') > 0
            THEN {schema}.log_exact(%s, %s, "watchkeeper text") ELSE %s END
            FROM (SELECT "watchkeeper row"::text AS "watchkeeper text" OFFSET 0) AS "watchkeeper texts")', relation, image, image) END;
    key text := {schema}.log_key_sql(relation, names);
    number text := CASE WHEN NOT is_single THEN 'row_number() OVER () AS number, ' ELSE '' END;
    -- OFFSET keeps the planner from repeating the expressions wherever they are used.
    side text := format('(SELECT %s%s AS key, %s AS image FROM %%I AS "watchkeeper row" OFFSET 0) AS %%s', number, key, exact_image);
BEGIN
    RETURN CASE operation
        WHEN 'INSERT' THEN format('INSERT INTO {schema}.log (entity, operation, key, after)
            SELECT %s, ''insert'', %s, %s FROM "watchkeeper new" AS "watchkeeper row"', entity, key, exact_image)
        WHEN 'DELETE' THEN format('INSERT INTO {schema}.log (entity, operation, key, before)
            SELECT %s, ''delete'', %s, %s FROM "watchkeeper old" AS "watchkeeper row"', entity, key, exact_image)
        ELSE format('INSERT INTO {schema}.log (entity, operation, key, old_key, before, after)
            SELECT %s, %s, coalesce(n.key, o.key), CASE WHEN n.key <> o.key THEN o.key END, o.image, n.image FROM %s %s %s %s', entity,
            CASE WHEN is_single THEN '' ELSE 'CASE WHEN o.number IS NULL THEN ''insert'' WHEN n.number IS NULL THEN ''delete'' ELSE ' END
                || 'CASE WHEN n.key <> o.key THEN ''rekey'' ELSE ''update'' END' || CASE WHEN is_single THEN '' ELSE ' END' END,
            format(side, 'watchkeeper old', 'o'), CASE WHEN is_single THEN 'CROSS JOIN' ELSE 'FULL JOIN' END,
            format(side, 'watchkeeper new', 'n'),
            CASE WHEN is_single THEN 'WHERE (SELECT count(*) FROM (SELECT FROM "watchkeeper old" LIMIT 2) AS c) = 1
                AND (SELECT count(*) FROM (SELECT FROM "watchkeeper new" LIMIT 2) AS c) = 1'
                ELSE 'ON n.number = o.number ORDER BY coalesce(o.number, n.number)' END)
        END;
END $body$;

CREATE OR REPLACE FUNCTION {schema}.log_row() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog SET timezone = 'UTC' SET bytea_output = 'hex' SET intervalstyle = 'iso_8601'
SET extra_float_digits = 1 SET datestyle = 'ISO' SET lc_monetary = 'C' AS $body$
DECLARE
    key text;
    old_key text;
    operation text := lower(TG_OP);
    columns text[] := TG_ARGV[2:];
    before json;
    after json;
    was json;
    is_now json;
    changed json;
    still json;
    list text;
    key_index oid := nullif(split_part(TG_ARGV[1], 'key=', 2), '');
    is_renamed boolean := false;
    part constant text := 'SELECT row_to_json("watchkeeper row") FROM (SELECT %s) AS "watchkeeper row"';
BEGIN
    IF TG_ARGV[1] LIKE '%virtual%' THEN
        list := format(part, {schema}.log_columns(TG_RELID, false, '($1).%I', ', '));
        IF TG_OP <> 'INSERT' THEN EXECUTE list INTO before USING OLD; END IF;
        IF TG_OP <> 'DELETE' THEN EXECUTE list INTO after USING NEW; END IF;
    ELSE
        IF TG_OP <> 'INSERT' THEN before := row_to_json(OLD); END IF;
        IF TG_OP <> 'DELETE' THEN after := row_to_json(NEW); END IF;
    END IF;
    -- A column of type json may hold escapes that the server cannot take apart again; a key never does.
    IF strpos(concat(before, after), chr(92) || 'u') = 0 THEN
        was := before;
        is_now := after;
        IF TG_OP = 'UPDATE' THEN
            -- Both have the same columns in the same order.
            SELECT coalesce(json_agg(c.name), '[]') INTO changed
                FROM ROWS FROM (json_each(before), json_each(after)) AS c (name, was, same_name, is_now)
                WHERE c.was::text IS DISTINCT FROM c.is_now::text;
        END IF;
    ELSE
        list := format(part, {schema}.log_columns(TG_RELID, true, '($1).%I', ', '));
        IF TG_OP <> 'INSERT' THEN EXECUTE list INTO was USING OLD; END IF;
        IF TG_OP <> 'DELETE' THEN EXECUTE list INTO is_now USING NEW; END IF;
        IF TG_OP = 'UPDATE' THEN
            list := {schema}.log_columns(TG_RELID, false, '(%1$L, ($1).%1$I::text IS DISTINCT FROM ($2).%1$I::text)', ', ');
            EXECUTE 'SELECT coalesce(json_agg(c.name), ''[]'') FROM (VALUES ' || list || ') AS c (name, differs) WHERE c.differs'
                INTO changed USING OLD, NEW;
        END IF;
    END IF;
    -- A key whose columns have other names by now is looked up; without any key left the change is told without one. Another column may
    -- have such a name since, so that it is not enough that all are there.
    FOR n IN 1 .. cardinality(columns) LOOP
        IF pg_get_indexdef(key_index, n, true) <> quote_ident(columns[n]) THEN is_renamed := true; END IF;
    END LOOP;
    IF TG_OP <> 'INSERT' AND NOT is_renamed THEN old_key := {schema}.log_key(was, columns); END IF;
    IF TG_OP <> 'DELETE' AND NOT is_renamed THEN key := {schema}.log_key(is_now, columns); END IF;
    IF TG_OP <> 'INSERT' AND old_key IS NULL THEN old_key := {schema}.log_key_now(was, TG_RELID); END IF;
    IF TG_OP <> 'DELETE' AND key IS NULL THEN key := {schema}.log_key_now(is_now, TG_RELID); END IF;
    IF TG_OP = 'UPDATE' AND key <> old_key THEN operation := 'rekey'; END IF;
    before := {schema}.log_exact(TG_RELID, before, OLD::text);
    after := {schema}.log_exact(TG_RELID, after, NEW::text);
    -- Where several rows may have one key until a statement or a transaction ends, a row that leaves a key may leave another
    -- one behind, which is told instead.
    IF operation IN ('rekey', 'delete') AND TG_ARGV[1] LIKE '%deferrable%' THEN
        list := {schema}.log_look(TG_RELID);
        IF list IS NOT NULL THEN EXECUTE list INTO still USING OLD; END IF;
        IF still IS NOT NULL THEN
            INSERT INTO {schema}.log (entity, operation, key, before, after) VALUES (TG_ARGV[0], 'update', old_key, before, still);
            IF operation = 'delete' THEN RETURN NULL; END IF;
            operation := 'insert';
            before := NULL;
            changed := NULL;
        END IF;
    END IF;
    INSERT INTO {schema}.log (entity, operation, key, old_key, before, after, changed) VALUES (
        TG_ARGV[0], operation, coalesce(key, old_key), CASE WHEN operation = 'rekey' THEN old_key END, before, after, changed);
    -- The triggers of one row run before the next row's. Where one of them has changed that next row again, this is in the log
    -- already, before the change that it came after: so what the row is by now is told once more.
    IF coalesce(strpos(current_setting('watchkeeper.nested', true), TG_ARGV[0]), 0) > 0
        AND pg_trigger_depth() < current_setting('watchkeeper.depth')::int AND TG_ARGV[1] NOT LIKE '%deferrable%' THEN
        list := {schema}.log_look(TG_RELID);
        IF operation IN ('rekey', 'delete') AND list IS NOT NULL THEN
            EXECUTE list INTO still USING OLD;
            IF still IS NOT NULL THEN
                INSERT INTO {schema}.log (entity, operation, key, after) VALUES (TG_ARGV[0], 'insert', old_key, still);
            END IF;
        END IF;
        IF TG_OP <> 'DELETE' AND list IS NOT NULL THEN
            EXECUTE list INTO still USING NEW;
            IF still IS NULL THEN
                INSERT INTO {schema}.log (entity, operation, key, before) VALUES (TG_ARGV[0], 'delete', key, after);
            ELSIF still::text <> after::text THEN
                INSERT INTO {schema}.log (entity, operation, key, before, after) VALUES (TG_ARGV[0], 'update', key, after, still);
            END IF;
        END IF;
    ELSIF pg_trigger_depth() > 1 THEN
        list := coalesce(current_setting('watchkeeper.nested', true), '');
        IF strpos(list, TG_ARGV[0]) = 0 THEN PERFORM set_config('watchkeeper.nested', list || ' ' || TG_ARGV[0], true); END IF;
        IF list = '' OR pg_trigger_depth() > current_setting('watchkeeper.depth')::int THEN
            PERFORM set_config('watchkeeper.depth', pg_trigger_depth()::text, true);
        END IF;
    END IF;
    RETURN NULL;
END $body$;

CREATE OR REPLACE FUNCTION {schema}.log_look(relation oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog AS $body$
    SELECT format('SELECT {schema}.log_exact(%s, (SELECT row_to_json("watchkeeper row") FROM (SELECT %s) AS "watchkeeper row"),
            "watchkeeper table"::text) FROM %s AS "watchkeeper table" WHERE %s LIMIT 1',
        coalesce(pg_partition_root(relation), relation)::oid,
        {schema}.log_columns(relation, false, '"watchkeeper table".%I', ', '),
        coalesce(pg_partition_root(relation), relation)::regclass, condition)
    FROM "#,
    key_condition!("($1)"),
    r#"
    WHERE condition IS NOT NULL
$body$;

CREATE OR REPLACE FUNCTION {schema}.log_doubts_sql(relation oid, operation text, names text[]) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog AS $body$
    SELECT format('SELECT t.key, said.image AS said, t.image AS is_now FROM (SELECT DISTINCT key, image FROM (%s) AS u) AS t
            JOIN (SELECT DISTINCT ON (s.key) s.key, s.image FROM {schema}.log l
                CROSS JOIN LATERAL (VALUES (l.key, l.after::text, 1), (l.old_key, NULL, 0)) AS s (key, image, half)
                WHERE l.xid = pg_current_xact_id() AND l.id > $2 AND l.entity = $1 AND s.key IS NOT NULL
                ORDER BY s.key, l.id DESC, s.half DESC) AS said ON said.key = t.key
            WHERE said.image IS DISTINCT FROM t.image',
            string_agg(format('SELECT %s AS key, (SELECT {schema}.log_exact(%s, (SELECT row_to_json("watchkeeper image") FROM (SELECT %s) AS "watchkeeper image"),
                    "watchkeeper table"::text) FROM %s AS "watchkeeper table" WHERE %s LIMIT 1)::text AS image FROM %I AS "watchkeeper row"',
                {schema}.log_key_sql(relation, names), relation, {schema}.log_columns(relation, false, '"watchkeeper table".%I', ', '),
                relation::regclass, key.condition, side.name), ' UNION ALL '))
        FROM "#,
    key_condition!("\"watchkeeper row\""),
    r#"
        JOIN (VALUES ('watchkeeper old', 'INSERT'), ('watchkeeper new', 'DELETE')) AS side (name, lacking) ON side.lacking <> operation
        WHERE key.condition IS NOT NULL
$body$;
"#
);

/// What an image has behind its columns where some are not told exactly.
const MARK: &[u8] = br#","watchkeeper exact":"#;

/// What a body with notes begins with, and no other.
const HEAD: &[u8] = br#"{"notes":"#;

/// An image as the log has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoggedImage<'a> {
    /// Its columns, as JSON that lacks its last brace if there are notes.
    pub(super) columns: &'a [u8],
    notes: Option<&'a [u8]>,
}

impl<'a> LoggedImage<'a> {
    pub(super) fn read(image: &'a [u8]) -> Self {
        let plain = Self { columns: image, notes: None };
        if !image.ends_with(b"}}") {
            return plain;
        }
        let Some(at) = image.windows(MARK.len()).rposition(|part| part == MARK) else { return plain };
        let notes = &image[at + MARK.len()..image.len() - 1];
        // Inside of a value of the last column it would not be followed by one object and the end of the image.
        if value_end(notes, 0) == notes.len() { Self { columns: &image[..at], notes: Some(notes) } } else { plain }
    }

    pub(super) fn append_to(self, into: &mut Vec<u8>) {
        into.extend_from_slice(self.columns);
        if self.notes.is_some() {
            into.push(b'}');
        }
    }
}

/// Appends the notes of images, if there are any, which a body then begins with.
pub(super) fn append_notes(into: &mut Vec<u8>, before: Option<LoggedImage<'_>>, after: Option<LoggedImage<'_>>) {
    let (before, after) = (before.and_then(|image| image.notes), after.and_then(|image| image.notes));
    if before.is_none() && after.is_none() {
        return;
    }
    into.extend_from_slice(HEAD);
    into.extend_from_slice(br#"{"before":"#);
    into.extend_from_slice(before.unwrap_or(b"{}"));
    into.extend_from_slice(br#","after":"#);
    into.extend_from_slice(after.unwrap_or(b"{}"));
    into.extend_from_slice(b"}}");
}

/// Whether the images of an update are told exactly alike, so that their columns can be compared as they are.
pub(super) fn are_noted_alike(before: LoggedImage<'_>, after: LoggedImage<'_>) -> bool {
    before.notes == after.notes
}

/// The notes of a body, and the body without them.
fn parted(body: &[u8]) -> (Option<&[u8]>, &[u8]) {
    if !body.starts_with(HEAD) {
        return (None, body);
    }
    let end = value_end(body, HEAD.len());
    (body.get(HEAD.len()..end), body.get(end + 1..).unwrap_or_default())
}

/// Bodies of a change log: rows of tables, with notes of what their JSON does not tell exactly.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LogRows;

impl Payload for LogRows {
    fn get<'a>(&self, body: &'a [u8], path: &[&str]) -> Result<Option<ValueRef<'a>>> {
        match parted(body) {
            (Some(notes), rows) if path.len() == 2 => Ok(match JsonPayload.get(notes, path)? {
                Some(ValueRef::Null) => Some(ValueRef::Json("null".into())),
                Some(text) => Some(text),
                None => JsonRows.get(rows, path)?,
            }),
            (_, rows) => JsonRows.get(rows, path),
        }
    }

    fn walk(&self, body: &[u8], visit: &mut dyn Visit) -> Result<()> {
        let (Some(notes), rows) = parted(body) else { return JsonRows.walk(body, visit) };
        let notes = serde_json::from_slice(notes)
            .map_err(|error| Error::corrupt("the notes of a logged row cannot be read").caused_by(error))?;
        JsonRows
            .walk(rows, &mut Noted { notes, visit, depth: 0, image: String::new(), column: String::new(), skipped: 0 })
    }

    fn sends_whole_rows(&self) -> bool {
        true
    }
}

/// By image and column: the text of a value, or none for the JSON null.
type RecordStore = BTreeMap<String, BTreeMap<String, Option<String>>>;

/// Passes on what is visited, with the values of notes in place of those of the row.
struct Noted<'a> {
    notes: RecordStore,
    visit: &'a mut dyn Visit,
    depth: usize,
    image: String,
    column: String,
    /// How many documents and arrays are open of a value that is replaced.
    skipped: usize,
}

impl Noted<'_> {
    /// Whether the value that begins here is not passed on, because it is part of one that a note replaces.
    fn replaces(&mut self) -> bool {
        if self.skipped > 0 {
            return true;
        }
        let columns = if self.depth == 2 { self.notes.get(&self.image) } else { None };
        let Some(note) = columns.and_then(|columns| columns.get(&self.column)) else { return false };
        self.visit.value(match note {
            Some(text) => ValueRef::Str(text.into()),
            None => ValueRef::Json("null".into()),
        });
        true
    }

    fn begins(&mut self) -> bool {
        let is_replaced = self.replaces();
        if is_replaced {
            self.skipped += 1;
        } else {
            self.depth += 1;
        }
        !is_replaced
    }

    fn ends(&mut self) -> bool {
        if self.skipped > 0 {
            self.skipped -= 1;
            return false;
        }
        self.depth -= 1;
        true
    }
}

impl Visit for Noted<'_> {
    fn value(&mut self, value: ValueRef<'_>) {
        if !self.replaces() {
            self.visit.value(value);
        }
    }

    fn quoted(&mut self, quoted: &str) -> Result<()> {
        if self.replaces() { Ok(()) } else { self.visit.quoted(quoted) }
    }

    fn begin_document(&mut self) {
        if self.begins() {
            self.visit.begin_document();
        }
    }

    fn key(&mut self, key: &str) {
        if self.skipped > 0 {
            return;
        }
        match self.depth {
            1 => key.clone_into(&mut self.image),
            2 => key.clone_into(&mut self.column),
            _ => {}
        }
        self.visit.key(key);
    }

    fn end_document(&mut self) {
        if self.ends() {
            self.visit.end_document();
        }
    }

    fn begin_array(&mut self) {
        if self.begins() {
            self.visit.begin_array();
        }
    }

    fn end_array(&mut self) {
        if self.ends() {
            self.visit.end_array();
        }
    }
}

#[cfg(test)]
mod tests {
    use watchkeeper_core::format::JsonWriter;
    use watchkeeper_core::{Image, Operation};

    use super::*;

    const NOTED: &str =
        r#"{"id":1,"j":null,"a":[1,{"j":2}],"watchkeeper exact":{ "j" : null, "a" : "[0:1]={1,\"x\"}" }}"#;

    fn body(before: &str, after: &str) -> Vec<u8> {
        let (before, after) = (LoggedImage::read(before.as_bytes()), LoggedImage::read(after.as_bytes()));
        let mut body = Vec::new();
        append_notes(&mut body, Some(before), Some(after));
        body.extend_from_slice(br#"{"before":"#);
        before.append_to(&mut body);
        body.extend_from_slice(br#","after":"#);
        after.append_to(&mut body);
        body.push(b'}');
        body
    }

    fn written(walk: impl FnOnce(&mut JsonWriter<'_>)) -> String {
        let mut out = Vec::new();
        walk(&mut JsonWriter::new(&mut out));
        String::from_utf8(out).expect("JSON is text")
    }

    #[test]
    fn notes_take_the_place_of_values() {
        let body = body(r#"{"id":1,"j":null,"a":[1]}"#, NOTED);
        let row = r#"{"id":1,"j":null,"a":"[0:1]={1,\"x\"}"}"#;
        let all = written(|out| LogRows.walk(&body, out).expect("it is JSON"));
        assert_eq!(all, format!(r#"{{"before":{{"id":1,"j":null,"a":[1]}},"after":{row}}}"#));
        let after = written(|out| {
            assert!(LogRows.image(&body, Operation::Update, Image::After, out).expect("it is JSON"));
        });
        assert_eq!(after, row);
        let get = |image: &str, column: &str| LogRows.get(&body, &[image, column]).expect("it is JSON");
        assert_eq!(get("after", "j"), Some(ValueRef::Json("null".into())));
        assert_eq!(get("before", "j"), Some(ValueRef::Null));
        assert_eq!(get("after", "a"), Some(ValueRef::Str("[0:1]={1,\"x\"}".into())));
        assert_eq!((get("after", "id"), get("after", "b")), (Some(ValueRef::Int64(1)), None));
    }

    #[test]
    fn values_that_look_like_notes_are_values() {
        for image in [
            r#"{"j":{"x":1,"watchkeeper exact":{"j":null}}}"#,
            r#"{"j":[{"x":1,"watchkeeper exact":{}}]}"#,
            r#"{"j":",\"watchkeeper exact\":{}"}"#,
            "{}",
        ] {
            let body = body(image, image);
            assert!(body.starts_with(br#"{"before":"#), "{image}");
            assert_eq!(
                written(|out| LogRows.walk(&body, out).expect("it is JSON")),
                format!(r#"{{"before":{image},"after":{image}}}"#)
            );
        }
    }
}
