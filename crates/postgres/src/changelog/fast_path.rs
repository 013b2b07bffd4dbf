//! A cheaper trigger function for plain tables and single-row statements.
//!
//! In a transaction of one row the fixed costs of the trigger count: `SET` clauses of a function, looking up the names of the key, and every
//! expression that the server prepares anew. A plain table is one whose images and keys come out alike whatever the session's settings are, or
//! depend on settings that are nearly always as they have to be. Its function has no `SET` clause, and logs most statements by one `INSERT`.

use super::statement::log_statement_body;

/// Adds the fast path. Functions of tables that were logged before get it when `install` names their tables again.
///
/// * The newest loss of history is found through `log_tables.lost`: an index of the losses in the log cost every writer more than the rest of
///   its indexes.
/// * `log_fits` is immutable by declaration only. The planner evaluates it once for each plan, and the plan depends on the logged table by its
///   transition tables: after every change of the table it is planned, and `log_fits` is asked, again. Where it answers false, the
///   statement logs nothing, and the general way follows.
/// * A key column that was renamed resolves to `watchkeeper absent`, since an error would keep the application from writing.
/// * The function runs with the rights of its owner and the search path of the session: until it has set its own, every name is qualified.
pub(super) const STEP: &str = concat!(
    r#"
-- The numbers of the rows in the log that say that history of this table was lost.
ALTER TABLE {schema}.log_tables ADD COLUMN lost bigint[] NOT NULL DEFAULT '{}';
UPDATE {schema}.log_tables t SET lost = ARRAY(SELECT l.id FROM {schema}.log l WHERE l.operation = 'lost' AND l.entity = t.entity);
DROP INDEX {schema}.log_losses;

-- Types of columns that are written alike under all settings, or under the one setting that each of these needs stands for.
CREATE OR REPLACE FUNCTION {schema}.log_plain_types(needs text[]) RETURNS oid[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT array_agg(t.type::oid) FROM (VALUES ('bool'::regtype, NULL), ('int2', NULL), ('int4', NULL), ('int8', NULL), ('numeric', NULL),
            ('text', NULL), ('varchar', NULL), ('bpchar', NULL), ('name', NULL), ('uuid', NULL), ('date', NULL), ('timestamp', NULL),
            ('json', NULL), ('jsonb', NULL), ('inet', NULL), ('cidr', NULL), ('float4', 'float'), ('float8', 'float'), ('bytea', 'bytea'),
            ('timestamptz', 'timezone')) AS t (type, need)
        WHERE t.need IS NULL OR t.need = ANY (needs)
$body$;

-- Types of key columns that need no more than to be written as JSON.
CREATE OR REPLACE FUNCTION {schema}.log_plain_key_types() RETURNS oid[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT '{int2,int4,int8,text,varchar,uuid}'::regtype[]::oid[]
$body$;

-- What a table needs beyond a plain one: 'float', 'bytea' and 'timezone' where one setting decides how they are written, 'settings' for types whose text
-- depends on several settings or that are not known, 'key' for keys that need more than to be written as JSON.
CREATE OR REPLACE FUNCTION {schema}.log_needs(relation oid, names text[]) RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT array_agg(DISTINCT n.need) FROM (
        SELECT CASE WHEN t.oid IN ('float4'::regtype, 'float8'::regtype) THEN 'float'
            WHEN t.oid = 'bytea'::regtype THEN 'bytea'
            WHEN t.oid = 'timestamptz'::regtype THEN 'timezone'
            WHEN t.typtype <> 'e' AND t.oid <> ALL ({schema}.log_plain_types('{}')) THEN 'settings'
            ELSE 'nothing' END AS need
        FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
        WHERE a.attrelid = relation AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL SELECT 'key' FROM pg_attribute a WHERE a.attrelid = relation AND a.attname = ANY (names) AND NOT a.attisdropped
            AND a.atttypid <> ALL ({schema}.log_plain_key_types())
    ) AS n
$body$;

-- Whether the function of a table can still log it on the fast path: its columns have these types, those of its key are among these, and the
-- columns of the key have these names. Immutable for the planner, which asks once for each plan; a new connection asks at its first statement,
-- so that this is kept cheap.
CREATE OR REPLACE FUNCTION {schema}.log_fits(relation oid, key int2[], names text[], types oid[], key_types oid[]) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    RETURN pg_partition_root(relation) IS NULL AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = relation AND a.attnum > 0
        AND (NOT a.attisdropped AND a.atttypid <> ALL (types) OR a.attnum = ANY (key)
            AND (a.attname::text <> names[array_position(key, a.attnum)] OR NOT a.attnotnull OR a.atttypid <> ALL (key_types))));
END $body$;

-- Logs the transition tables of a plain table: all rows of an INSERT or a DELETE, or the one row of an UPDATE.
CREATE OR REPLACE FUNCTION {schema}.log_plain_sql(relation oid, names text[], needs text[], operation text, entity text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    absent text := (SELECT string_agg(format('NULL::pg_catalog.text AS %I', name), ', ') FROM unnest(names) AS name);
    key text := (SELECT '''['' OPERATOR(pg_catalog.||) ' || string_agg(format('pg_catalog.to_json(%I)::pg_catalog.text', k.name),
            ' OPERATOR(pg_catalog.||) '','' OPERATOR(pg_catalog.||) ' ORDER BY k.n) || ' OPERATOR(pg_catalog.||) '']'''
        FROM unnest(names) WITH ORDINALITY AS k (name, n));
    -- An enumeration that a column has by now is as plain as the known types.
    types oid[] := {schema}.log_plain_types(needs) || ARRAY(SELECT DISTINCT t.oid FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
        WHERE a.attrelid = relation AND a.attnum > 0 AND NOT a.attisdropped AND t.typtype = 'e');
    numbers int2[] := ARRAY(SELECT a.attnum FROM unnest(names) WITH ORDINALITY AS k (name, n)
        JOIN pg_attribute a ON a.attrelid = relation AND a.attname = k.name ORDER BY k.n);
    fits text := format('{schema}.log_fits(%s::pg_catalog.oid, %L::pg_catalog.int2[], %L::pg_catalog.text[], %L::pg_catalog.oid[], %L::pg_catalog.oid[])',
        relation, numbers, names, types, {schema}.log_plain_key_types());
    -- Within `present`, the name of a key column is that of the row; where it has none of that name, that of `absent`.
    side text := format('SELECT k.key, pg_catalog.row_to_json("watchkeeper row".*) AS image FROM (SELECT %s) AS "watchkeeper absent"
            CROSS JOIN %%I AS "watchkeeper row"
            CROSS JOIN LATERAL (SELECT %s AS key FROM (SELECT "watchkeeper row".*) AS "watchkeeper present") AS k WHERE %s', replace(absent, '%', '%%'), replace(key, '%', '%%'), replace(fits, '%', '%%'));
BEGIN
    RETURN CASE operation
        WHEN 'INSERT' THEN format('INSERT INTO {schema}.log (entity, operation, key, after)
            SELECT %L, ''insert'', n.key, n.image FROM (%s) AS n', entity, format(side, 'watchkeeper new'))
        WHEN 'DELETE' THEN format('INSERT INTO {schema}.log (entity, operation, key, before)
            SELECT %L, ''delete'', o.key, o.image FROM (%s) AS o', entity, format(side, 'watchkeeper old'))
        -- OFFSET keeps the planner from repeating the expressions wherever they are used.
        ELSE format('INSERT INTO {schema}.log (entity, operation, key, old_key, before, after)
            SELECT %L, CASE WHEN n.key OPERATOR(pg_catalog.<>) o.key THEN ''rekey'' ELSE ''update'' END, n.key,
                CASE WHEN n.key OPERATOR(pg_catalog.<>) o.key THEN o.key END, o.image, n.image
            FROM (%s OFFSET 0) AS o CROSS JOIN (%s OFFSET 0) AS n
            WHERE (SELECT pg_catalog.count(*) FROM (SELECT FROM "watchkeeper old" LIMIT 2) AS c) OPERATOR(pg_catalog.=) 1
                AND (SELECT pg_catalog.count(*) FROM (SELECT FROM "watchkeeper new" LIMIT 2) AS c) OPERATOR(pg_catalog.=) 1',
            entity, format(side, 'watchkeeper old'), format(side, 'watchkeeper new'))
        END;
END $body$;

-- Makes the function of a plain table, in place of the one that `log_make` has made for any table.
CREATE OR REPLACE FUNCTION {schema}.log_make_plain(relation oid, key_index oid, names text[], needs text[], entity text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $make$
BEGIN
    EXECUTE format('CREATE OR REPLACE FUNCTION {schema}.%I() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS %L', 'log_of_' || relation,
        format($body$
-- Columns of the key are named without their row, and may be called like a variable.
#variable_conflict use_column
DECLARE
    state pg_catalog.text;
    settings pg_catalog.text[];
    others pg_catalog.text;
    place int;
    is_behind boolean;
    since bigint;
    through bigint;
    names pg_catalog.text[];
    logged bigint;
    doubts pg_catalog.text;
    doubtful pg_catalog.text[];
BEGIN
    -- No other statement on the table is open, and the session writes values as the log has to have them.
    IF (pg_catalog.current_setting('watchkeeper.open_%1$s', true) OPERATOR(pg_catalog.=) 'I'%12$s) THEN
        %9$s;
        IF FOUND THEN
            state := pg_catalog.set_config('watchkeeper.open_%1$s', '', true);
            RETURN NULL;
        END IF;
        IF NOT EXISTS (SELECT FROM "watchkeeper new") THEN
            state := pg_catalog.set_config('watchkeeper.open_%1$s', '', true);
            RETURN NULL;
        END IF;
    ELSIF (pg_catalog.current_setting('watchkeeper.open_%1$s', true) OPERATOR(pg_catalog.=) 'U'%12$s) THEN
        %11$s;
        IF FOUND THEN
            state := pg_catalog.set_config('watchkeeper.open_%1$s', '', true);
            RETURN NULL;
        END IF;
        IF NOT EXISTS (SELECT FROM "watchkeeper old") AND NOT EXISTS (SELECT FROM "watchkeeper new") THEN
            state := pg_catalog.set_config('watchkeeper.open_%1$s', '', true);
            RETURN NULL;
        END IF;
    ELSIF (pg_catalog.current_setting('watchkeeper.open_%1$s', true) OPERATOR(pg_catalog.=) 'D'%12$s) THEN
        %10$s;
        IF FOUND THEN
            state := pg_catalog.set_config('watchkeeper.open_%1$s', '', true);
            RETURN NULL;
        END IF;
        IF NOT EXISTS (SELECT FROM "watchkeeper old") THEN
            state := pg_catalog.set_config('watchkeeper.open_%1$s', '', true);
            RETURN NULL;
        END IF;
    END IF;
    -- The general way, with the settings that it needs. They are the session's again at its end.
    settings := ARRAY[pg_catalog.current_setting('search_path'), pg_catalog.current_setting('timezone'),
        pg_catalog.current_setting('bytea_output'), pg_catalog.current_setting('intervalstyle'),
        pg_catalog.current_setting('extra_float_digits'), pg_catalog.current_setting('datestyle'),
        pg_catalog.current_setting('lc_monetary')];
    state := pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    state := concat(set_config('timezone', 'UTC', true), set_config('bytea_output', 'hex', true), set_config('intervalstyle', 'iso_8601', true),
        set_config('extra_float_digits', '1', true), set_config('datestyle', 'ISO', true), set_config('lc_monetary', 'C', true));
    <<general>>
    BEGIN
"#,
    log_statement_body!("EXIT general;"),
    r#"    END;
    state := concat(set_config('timezone', settings[2], true), set_config('bytea_output', settings[3], true),
        set_config('intervalstyle', settings[4], true), set_config('extra_float_digits', settings[5], true),
        set_config('datestyle', settings[6], true), set_config('lc_monetary', settings[7], true),
        set_config('search_path', settings[1], true));
    RETURN NULL;
END $body$,
        relation,
        (SELECT string_agg(format('pg_get_indexdef(%s, %s, true) IS NOT DISTINCT FROM %L', key_index, n, quote_ident(names[n])), ' AND ')
            FROM generate_series(1, cardinality(names)) n),
        key_index, 'false',
        {schema}.log_statement_sql(relation, 'INSERT', false, false, quote_literal(entity), names),
        {schema}.log_statement_sql(relation, 'DELETE', false, false, quote_literal(entity), names),
        {schema}.log_statement_sql(relation, 'UPDATE', true, false, quote_literal(entity), names),
        {schema}.log_statement_sql(relation, 'UPDATE', false, false, quote_literal(entity), names),
        {schema}.log_plain_sql(relation, names, needs, 'INSERT', entity),
        {schema}.log_plain_sql(relation, names, needs, 'DELETE', entity),
        {schema}.log_plain_sql(relation, names, needs, 'UPDATE', entity),
        CASE WHEN 'float' = ANY (needs) THEN ' AND pg_catalog.current_setting(''extra_float_digits'')
            OPERATOR(pg_catalog.=) ANY (''{1,2,3}''::pg_catalog.text[])' ELSE '' END
        || CASE WHEN 'timezone' = ANY (needs) THEN ' AND pg_catalog.current_setting(''timezone'')
            OPERATOR(pg_catalog.=) ANY (''{UTC,Etc/UTC}''::pg_catalog.text[])' ELSE '' END
        || CASE WHEN 'bytea' = ANY (needs) THEN ' AND pg_catalog.current_setting(''bytea_output'') OPERATOR(pg_catalog.=) ''hex''' ELSE '' END));
END $make$;
REVOKE ALL ON FUNCTION {schema}.log_make_plain(oid, oid, text[], text[], text) FROM PUBLIC;

-- Makes the functions that note that a statement on a table begins and log it when it ends, by what the table needs. The first one names its
-- setting itself: taking the name from the arguments of the trigger takes a third of its time.
CREATE OR REPLACE FUNCTION {schema}.log_make_best(relation oid, key_index oid, names text[], is_virtual boolean, entity text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $make$
DECLARE
    needs text[] := {schema}.log_needs(relation, names);
BEGIN
    EXECUTE format('CREATE OR REPLACE FUNCTION {schema}.%I() RETURNS trigger LANGUAGE plpgsql AS %L', 'log_open_' || relation, format($body$
DECLARE
    state pg_catalog.text;
BEGIN
    state := pg_catalog.set_config('watchkeeper.open_%1$s', coalesce(pg_catalog.current_setting('watchkeeper.open_%1$s', true), '')
        OPERATOR(pg_catalog.||) pg_catalog.left(TG_OP, 1), true);
    RETURN NULL;
END $body$, relation));
    IF NOT is_virtual AND NOT needs && ARRAY['settings', 'key'] AND {schema}.log_exact_sql(relation) IS NULL THEN
        PERFORM {schema}.log_make_plain(relation, key_index, names, needs, entity);
    ELSE
        PERFORM {schema}.log_make(relation, key_index, names, is_virtual);
    END IF;
END $make$;
REVOKE ALL ON FUNCTION {schema}.log_make_best(oid, oid, text[], boolean, text) FROM PUBLIC;
"#
);
