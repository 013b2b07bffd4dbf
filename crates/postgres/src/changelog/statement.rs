//! Triggers that log a whole statement at once, from its transition tables.

use super::schema::key_condition;

/// What a table's function does, which ends with `$end`. It is installed already: a change of it is a step of its own.
macro_rules! log_statement_body {
    ($end:literal) => {
        concat!(
            r#"    -- Few expressions on the usual way: the server prepares each of them anew in every transaction. An immutable function of a
    -- constant would be called once per session.
    IF current_setting('watchkeeper.open_%1$s', true) = left(TG_OP, 1) AND pg_partition_root(TG_RELID) IS NULL AND %2$s THEN
    ELSE
        -- The row-level trigger logs partitions: a statement on a partitioned table names none of them.
        IF pg_partition_root(TG_RELID) IS NOT NULL THEN "#,
            $end,
            r#" END IF;
        state := coalesce(nullif(current_setting('watchkeeper.open_%1$s', true), ''), left(TG_OP, 1));
        others := substring(state FROM '[A-Za-z]*$');
        since := substring(state FROM '^([0-9]+) ');
        -- Of two open statements with one operation, the later one ends first.
        place := length(others) - position(left(TG_OP, 1) IN reverse(upper(others))) + 1;
        is_behind := substring(others FROM place FOR 1) = lower(left(TG_OP, 1));
        others := overlay(others PLACING '' FROM place FOR 1);
        through := coalesce(pg_sequence_last_value(pg_get_serial_sequence('{schema}.log', 'id')::regclass), 0);
        IF NOT (%2$s) THEN
            names := coalesce({schema}.log_key_names(TG_RELID, %3$s, TG_ARGV[2:]), '{}');
            EXECUTE {schema}.log_statement_sql(TG_RELID, TG_OP, false, %4$s, '$1', names) USING TG_ARGV[0];
            GET DIAGNOSTICS logged = ROW_COUNT;
        END IF;
    END IF;
    IF names IS NOT NULL THEN
    ELSIF TG_OP = 'INSERT' THEN
        %5$s;
    ELSIF TG_OP = 'DELETE' THEN
        %6$s;
    ELSE
        -- A single row needs no pairing, which would take longer than all the rest.
        %7$s;
        IF NOT FOUND THEN
            %8$s;
        END IF;
    END IF;
    IF others IS NULL THEN
        state := set_config('watchkeeper.open_%1$s', '', true);
        "#,
            $end,
            r#"
    END IF;
    IF names IS NULL THEN GET DIAGNOSTICS logged = ROW_COUNT; END IF;
    IF logged > 0 THEN
        others := lower(others);
        since := coalesce(since, through);
    END IF;
    state := set_config('watchkeeper.open_%1$s', CASE WHEN others = '' THEN '' ELSE concat(since || ' ', others) END, true);
    IF logged = 0 OR NOT is_behind THEN "#,
            $end,
            r#" END IF;
    doubts := {schema}.log_doubts_sql(TG_RELID, TG_OP, coalesce(names, TG_ARGV[2:]));
    IF doubts IS NULL THEN "#,
            $end,
            r#" END IF;
    EXECUTE 'SELECT array_agg(d.key) FROM (' || doubts || ') AS d' INTO doubtful USING TG_ARGV[0], since;
    IF doubtful IS NULL THEN "#,
            $end,
            r#" END IF;
    PERFORM {schema}.log_move(TG_ARGV[0], since, through, doubtful);
    EXECUTE 'INSERT INTO {schema}.log (entity, operation, key, before, after)
        SELECT $1, CASE WHEN d.said IS NULL THEN ''insert'' WHEN d.is_now IS NULL THEN ''delete'' ELSE ''update'' END,
            d.key, d.said::json, d.is_now::json FROM (' || doubts || ') AS d' USING TG_ARGV[0], since;
    "#,
            $end,
            r#"
"#,
        )
    };
}
pub(super) use log_statement_body;

/// Adds what statement-level triggers need. Row-level triggers stay as they are, for tables that need them.
///
/// * Each table has a function of its own, `log_of_OID`, made by `log_make`: its SQL names the columns of the key, so that the server plans
///   it once per session. It is used as long as the key's columns have the names that it knows; otherwise the same SQL is
///   put together anew for the statement. Names in that SQL are quoted with a space, which no column has.
/// * The rows before and after an UPDATE are paired by their order: the server adds to both transition tables row by row.
/// * Changes of a table are logged when its statement ends. Triggers and functions of the application, foreign keys, and the parts of
///   MERGE and WITH may change the same rows during the statement, and log that earlier. `watchkeeper.open_OID` has a letter for each open
///   statement of a table: its operation, in lower case as soon as another one has logged something since it began. A number before the letters
///   is the last one before the first row that was logged so. A statement that ends behind others compares what it logged with the table, and
///   moves later changes of its rows behind its own.
pub(super) const STEP: &str = concat!(
    r#"
-- In a language that the planner does not expand: the server prepares all expressions of a plan for each statement.
CREATE FUNCTION {schema}.log_key_part(part json) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $body$
BEGIN
    RETURN CASE pg_catalog.json_typeof(part)
        WHEN 'string' THEN part::text
        -- 1.0 and 1.00 are one key.
        WHEN 'number' THEN pg_catalog.trim_scale(part::text::numeric)::text
        ELSE coalesce(part::text::jsonb::text, 'null') END;
END $body$;

-- The key of "watchkeeper row", null without names. Whole numbers and texts need no more than to be written as JSON.
CREATE FUNCTION {schema}.log_key_sql(relation oid, names text[]) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog AS $body$
    SELECT coalesce('''['' || ' || string_agg(format(CASE
            WHEN a.atttypid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'text'::regtype, 'varchar'::regtype, 'uuid'::regtype)
                AND a.attnotnull THEN 'to_json("watchkeeper row".%I)::text'
            ELSE '{schema}.log_key_part(to_json("watchkeeper row".%I))' END, k.name), ' || '','' || ' ORDER BY k.n) || ' || '']''', 'NULL::text')
        FROM unnest(names) WITH ORDINALITY AS k (name, n)
        JOIN pg_attribute a ON a.attrelid = relation AND a.attname = k.name AND NOT a.attisdropped
$body$;

-- The names that the columns of the key have now: those of its index, or of before if that is gone and they are not, or of another key.
CREATE FUNCTION {schema}.log_key_names(relation oid, key_index oid, known text[]) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $body$
DECLARE
    names text[];
BEGIN
    IF NOT EXISTS (SELECT FROM pg_index WHERE indexrelid = key_index) AND known <@ ARRAY(
        SELECT attname::text FROM pg_attribute WHERE attrelid = relation AND attnum > 0 AND NOT attisdropped) THEN
        RETURN known;
    END IF;
    SELECT array_agg(a.attname::text ORDER BY k.n) INTO names
        FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, n)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
        WHERE i.indrelid = relation AND i.indisprimary AND k.n <= i.indnkeyatts;
    RETURN names;
END $body$;

-- Logs the transition tables. Without virtual columns the row is taken as a whole, whatever its columns are by then.
CREATE FUNCTION {schema}.log_statement_sql(
    relation oid, operation text, is_single boolean, is_virtual boolean, entity text, names text[]) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $body$
DECLARE
    image text := CASE WHEN is_virtual
        THEN format('(SELECT row_to_json("watchkeeper image") FROM (SELECT %s) AS "watchkeeper image")',
            {schema}.log_columns(relation, false, '"watchkeeper row".%I', ', '))
        ELSE 'row_to_json("watchkeeper row".*)' END;
    key text := {schema}.log_key_sql(relation, names);
    number text := CASE WHEN NOT is_single THEN 'row_number() OVER () AS number, ' ELSE '' END;
    -- OFFSET keeps the planner from repeating the expressions wherever they are used.
    side text := format('(SELECT %s%s AS key, %s AS image FROM %%I AS "watchkeeper row" OFFSET 0) AS %%s', number, key, image);
BEGIN
    RETURN CASE operation
        WHEN 'INSERT' THEN format('INSERT INTO {schema}.log (entity, operation, key, after)
            SELECT %s, ''insert'', %s, %s FROM "watchkeeper new" AS "watchkeeper row"', entity, key, image)
        WHEN 'DELETE' THEN format('INSERT INTO {schema}.log (entity, operation, key, before)
            SELECT %s, ''delete'', %s, %s FROM "watchkeeper old" AS "watchkeeper row"', entity, key, image)
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

-- The keys of the statement of which the log, from the number $2 on, says something else than the table, with both; null without a key.
CREATE FUNCTION {schema}.log_doubts_sql(relation oid, operation text, names text[]) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog AS $body$
    SELECT format('SELECT t.key, said.image AS said, t.image AS is_now FROM (SELECT DISTINCT key, image FROM (%s) AS u) AS t
            JOIN (SELECT DISTINCT ON (s.key) s.key, s.image FROM {schema}.log l
                CROSS JOIN LATERAL (VALUES (l.key, l.after::text, 1), (l.old_key, NULL, 0)) AS s (key, image, half)
                WHERE l.xid = pg_current_xact_id() AND l.id > $2 AND l.entity = $1 AND s.key IS NOT NULL
                ORDER BY s.key, l.id DESC, s.half DESC) AS said ON said.key = t.key
            WHERE said.image IS DISTINCT FROM t.image',
            string_agg(format('SELECT %s AS key, (SELECT row_to_json("watchkeeper image") FROM (SELECT %s FROM %s AS "watchkeeper table"
                    WHERE %s LIMIT 1) AS "watchkeeper image")::text AS image FROM %I AS "watchkeeper row"',
                {schema}.log_key_sql(relation, names), {schema}.log_columns(relation, false, '"watchkeeper table".%I', ', '),
                relation::regclass, key.condition, side.name), ' UNION ALL '))
        FROM "#,
    key_condition!("\"watchkeeper row\""),
    r#"
        JOIN (VALUES ('watchkeeper old', 'INSERT'), ('watchkeeper new', 'DELETE')) AS side (name, lacking) ON side.lacking <> operation
        WHERE key.condition IS NOT NULL
$body$;

-- Gives new numbers to what this transaction has logged of these keys, and of keys that became them or that they became, in the same order.
CREATE FUNCTION {schema}.log_move(of_entity text, since bigint, through bigint, keys text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog AS $body$
DECLARE
    moved bigint;
BEGIN
    FOR moved IN WITH RECURSIVE others AS MATERIALIZED (SELECT l.id, l.key, l.old_key FROM {schema}.log l
            WHERE l.xid = pg_current_xact_id() AND l.id > since AND l.id <= through AND l.entity = of_entity),
        linked (key) AS (SELECT unnest(keys) UNION SELECT s.key FROM linked k JOIN others o ON o.old_key IS NOT NULL AND k.key IN (o.key, o.old_key)
            CROSS JOIN LATERAL (VALUES (o.key), (o.old_key)) AS s (key))
        SELECT o.id FROM others o WHERE o.key IN (SELECT k.key FROM linked k) OR o.old_key IN (SELECT k.key FROM linked k)
            ORDER BY o.id LOOP
        UPDATE {schema}.log SET id = DEFAULT, time = DEFAULT WHERE id = moved;
    END LOOP;
END $body$;

-- Whoever writes to a table need not have rights on the log, or a search path that can be trusted.
CREATE FUNCTION {schema}.log_open() RETURNS trigger LANGUAGE plpgsql AS $body$
DECLARE
    state text;
BEGIN
    state := pg_catalog.set_config(TG_ARGV[0], pg_catalog.concat(pg_catalog.current_setting(TG_ARGV[0], true), pg_catalog.left(TG_OP, 1)), true);
    RETURN NULL;
END $body$;

-- Makes the function that logs the statements of a table. Its owner is that of the log.
CREATE FUNCTION {schema}.log_make(relation oid, key_index oid, names text[], is_virtual boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $make$
BEGIN
    EXECUTE format('CREATE OR REPLACE FUNCTION {schema}.%I() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
        SET search_path = pg_catalog SET timezone = ''UTC'' SET bytea_output = ''hex'' SET intervalstyle = ''iso_8601''
        SET extra_float_digits = 1 SET datestyle = ''ISO'' SET lc_monetary = ''C'' AS %L', 'log_of_' || relation, format($body$
DECLARE
    state text;
    others text;
    place int;
    is_behind boolean;
    since bigint;
    through bigint;
    names text[];
    logged bigint;
    doubts text;
    doubtful text[];
BEGIN
"#,
    log_statement_body!("RETURN NULL;"),
    r#"END $body$,
        relation,
        CASE WHEN is_virtual THEN 'false' ELSE (SELECT string_agg(format('pg_get_indexdef(%s, %s, true) IS NOT DISTINCT FROM %L',
            key_index, n, quote_ident(names[n])), ' AND ') FROM generate_series(1, cardinality(names)) n) END,
        key_index, is_virtual::text,
        {schema}.log_statement_sql(relation, 'INSERT', false, false, 'TG_ARGV[0]', names),
        {schema}.log_statement_sql(relation, 'DELETE', false, false, 'TG_ARGV[0]', names),
        {schema}.log_statement_sql(relation, 'UPDATE', true, false, 'TG_ARGV[0]', names),
        {schema}.log_statement_sql(relation, 'UPDATE', false, false, 'TG_ARGV[0]', names)));
END $make$;
REVOKE ALL ON FUNCTION {schema}.log_make(oid, oid, text[], boolean) FROM PUBLIC;
"#
);
