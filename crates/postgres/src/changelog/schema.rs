//! The log and what belongs to it, in the application's own database.

use crate::client::Schema;

/// Tables and functions of the log.
///
/// * The numbers of changes come from a sequence without a cache: sessions that kept some in stock would give a later
///   change a lower number. They begin with the microseconds of the clock: those of a log that is installed again are higher, so that
///   whoever keeps what is newest by its number does not take new changes for old ones.
/// * The functions belong to whoever installs them and run with that one's rights, so that an application needs none on the
///   log. What they write does not depend on settings of the session: keys have to be the same whoever writes them, and dates
///   are read by others.
/// * A log of any version can be read and removed as it is. `install` brings it to the newest version, and the tables that it names to the newest
///   triggers; those of other tables go on as they are.
/// * Whatever a table takes, its triggers take: nothing of a row but its key is converted to a type that holds less.
pub(super) const SCHEMA: Schema = Schema {
    role: "log",
    steps: &[
        STEP_1,
        super::statement::STEP,
        super::guard::STEP,
        super::exact::STEP,
        super::fast_path::STEP,
        super::hardening::STEP,
        super::fewer_expressions::STEP,
    ],
};

/// From this version on, the log knows which values JSON does not hold exactly.
pub(super) const EXACT_VALUES: usize = 4;

/// From this version on, `log_tables` has the numbers of the losses.
pub(super) const LOSSES_BY_TABLE: usize = 5;

/// SQL of a subquery `key`: the `condition` under which a row of the table has the key of `$row`, or null without a key. Steps that use it
/// are installed already: a change of it is a step of its own.
macro_rules! key_condition {
    ($row:literal) => {
        concat!(
            r#"(SELECT string_agg(format('"watchkeeper table".%1$I OPERATOR(%2$I.%3$s) "#,
            $row,
            r#".%1$I',
                a.attname, coalesce(o.schema, 'pg_catalog'), coalesce(o.name, '=')), ' AND ') AS condition
            FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey::int2[], i.indclass::oid[]) WITH ORDINALITY AS k(attnum, class, n)
            JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
            LEFT JOIN LATERAL (SELECT p.oprname AS name, n.nspname AS schema FROM pg_opclass c
                JOIN pg_am am ON am.oid = c.opcmethod AND am.amname = 'btree'
                JOIN pg_amop m ON m.amopfamily = c.opcfamily AND m.amopstrategy = 3
                    AND m.amoplefttype = c.opcintype AND m.amoprighttype = c.opcintype
                JOIN pg_operator p ON p.oid = m.amopopr JOIN pg_namespace n ON n.oid = p.oprnamespace
                WHERE c.oid = k.class) AS o ON true
            WHERE i.indrelid = relation AND i.indisprimary AND k.n <= i.indnkeyatts) AS key"#
        )
    };
}
pub(super) use key_condition;

const STEP_1: &str = concat!(
    r#"
CREATE TABLE {schema}.log (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (CACHE 1),
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    time timestamptz NOT NULL DEFAULT clock_timestamp(),
    entity text NOT NULL,
    operation text NOT NULL,
    key text,
    old_key text,
    before json,
    after json,
    changed json);
CREATE INDEX log_by_xid ON {schema}.log (xid);
CREATE INDEX log_losses ON {schema}.log (id) WHERE operation = 'lost';
CREATE TABLE {schema}.log_meta (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    log_uuid uuid NOT NULL DEFAULT gen_random_uuid(),
    pruned_through pg_snapshot NOT NULL DEFAULT '3:3:',
    pruned_id bigint NOT NULL DEFAULT 0);
INSERT INTO {schema}.log_meta DEFAULT VALUES;
SELECT setval(pg_get_serial_sequence(format('%I.log', n.nspname), 'id'), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, false)
    FROM {schema}.log_meta m JOIN pg_class c ON c.oid = m.tableoid JOIN pg_namespace n ON n.oid = c.relnamespace;
CREATE TABLE {schema}.log_tables (
    entity text PRIMARY KEY, relation oid NOT NULL, key int2[] NOT NULL, since timestamptz NOT NULL DEFAULT clock_timestamp(),
    parts oid[] NOT NULL DEFAULT '{}');
CREATE TABLE {schema}.log_consumers (
    name text PRIMARY KEY,
    acknowledged pg_snapshot NOT NULL,
    seen timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE {schema}.log_marks (
    snapshot pg_snapshot NOT NULL, time timestamptz PRIMARY KEY DEFAULT clock_timestamp());

CREATE FUNCTION {schema}.log_key(image json, columns text[]) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $body$
DECLARE
    key text := '[';
    part json;
BEGIN
    FOR n IN 1 .. pg_catalog.cardinality(columns) LOOP
        part := image -> columns[n];
        key := key || CASE WHEN n = 1 THEN '' ELSE ',' END || CASE pg_catalog.json_typeof(part)
            WHEN 'string' THEN part::text
            -- 1.0 and 1.00 are one key.
            WHEN 'number' THEN pg_catalog.trim_scale(part::text::numeric)::text
            ELSE part::text::jsonb::text END;
    END LOOP;
    RETURN key || ']';
END $body$;

CREATE FUNCTION {schema}.log_key_now(image json, relation oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $body$
DECLARE
    columns text[];
BEGIN
    SELECT array_agg(a.attname::text ORDER BY k.n) INTO columns
        FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, n)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
        WHERE i.indrelid = relation AND i.indisprimary AND k.n <= i.indnkeyatts;
    RETURN CASE WHEN columns IS NOT NULL THEN {schema}.log_key(image, columns) END;
END $body$;

-- The columns of a table, or of its primary key, each written by the pattern.
CREATE FUNCTION {schema}.log_columns(relation oid, of_key boolean, pattern text, separator text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog AS $body$
    SELECT string_agg(format(pattern, a.attname), separator ORDER BY a.attnum) FROM pg_attribute a
        WHERE a.attrelid = relation AND a.attnum > 0 AND NOT a.attisdropped AND CASE WHEN of_key
            THEN EXISTS (SELECT FROM pg_index i WHERE i.indrelid = relation AND i.indisprimary
                AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]))
            -- What is not stored is not told: a trigger does not see it.
            ELSE a.attgenerated <> 'v' END
$body$;

-- What finds the row that has the key of $1 now, or null without a key. The names in it are those of no column. Operators are those of
-- the index: types of extensions have theirs in other schemas than the search path holds.
CREATE FUNCTION {schema}.log_look(relation oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog AS $body$
    SELECT format('SELECT row_to_json("watchkeeper row") FROM (SELECT %s FROM %s AS "watchkeeper table" WHERE %s LIMIT 1)
            AS "watchkeeper row"',
        {schema}.log_columns(relation, false, '"watchkeeper table".%I', ', '),
        coalesce(pg_partition_root(relation), relation)::regclass, condition)
    FROM "#,
    key_condition!("($1)"),
    r#"
    WHERE condition IS NOT NULL
$body$;

CREATE FUNCTION {schema}.log_row() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
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

CREATE FUNCTION {schema}.log_truncate() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog AS $body$
BEGIN
    INSERT INTO {schema}.log (entity, operation) VALUES (TG_ARGV[0], 'truncate');
    RETURN NULL;
END $body$;

CREATE FUNCTION {schema}.log_part() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog SET timezone = 'UTC' SET bytea_output = 'hex' SET intervalstyle = 'iso_8601'
SET extra_float_digits = 1 SET datestyle = 'ISO' SET lc_monetary = 'C' AS $body$
DECLARE
    image record;
    columns text[] := TG_ARGV[2:];
BEGIN
    -- Of a table that is truncated as a whole, that is told instead.
    IF current_setting('watchkeeper.truncated', true) = TG_ARGV[0] THEN RETURN NULL; END IF;
    -- A partition that was detached keeps this trigger, and is a table for itself.
    IF NOT EXISTS (SELECT FROM {schema}.log_tables l JOIN pg_partition_ancestors(TG_RELID) AS a ON a.relid = l.relation
        WHERE l.entity = TG_ARGV[0]) THEN RETURN NULL; END IF;
    FOR image IN EXECUTE format('SELECT row_to_json("watchkeeper key") AS key, row_to_json("watchkeeper row") AS row
        FROM %I.%I AS "watchkeeper table" CROSS JOIN LATERAL (SELECT %s) AS "watchkeeper key"
        CROSS JOIN LATERAL (SELECT %s) AS "watchkeeper row"', TG_TABLE_SCHEMA, TG_TABLE_NAME,
        coalesce({schema}.log_columns(TG_RELID, true, '"watchkeeper table".%I', ', '), 'NULL'),
        {schema}.log_columns(TG_RELID, false, '"watchkeeper table".%I', ', ')) LOOP
        INSERT INTO {schema}.log (entity, operation, key, before) VALUES (TG_ARGV[0], 'delete',
            coalesce({schema}.log_key(image.key, columns), {schema}.log_key_now(image.key, TG_RELID)), image.row);
    END LOOP;
    RETURN NULL;
END $body$;

CREATE FUNCTION {schema}.log_whole() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog AS $body$
BEGIN
    PERFORM set_config('watchkeeper.truncated', CASE WHEN TG_WHEN = 'BEFORE' THEN TG_ARGV[0] ELSE '' END, true);
    RETURN NULL;
END $body$;

CREATE FUNCTION {schema}.log_wake() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    PERFORM pg_catalog.pg_notify(TG_ARGV[0], '');
    RETURN NULL;
END $body$;
"#
);
