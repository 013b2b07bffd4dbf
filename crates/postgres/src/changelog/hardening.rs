//! What a hostile session, or an unlucky name, could do to the functions of the log.

/// Changes functions that earlier steps have made.
///
/// * A search path that does not name `pg_temp` has it first, for tables and types. Whoever may make temporary tables could put views in the place of
///   the server's catalogs, and have functions called with the rights of the log's owner.
/// * Texts that hold names of columns are formats only with their percent signs doubled.
/// * The columns of a key are known by their numbers: `REINDEX … CONCURRENTLY` gives its index another one.
pub(super) const STEP: &str = r#"
-- The name that a column of the primary key has now.
CREATE OR REPLACE FUNCTION {schema}.log_key_column(relation oid, place int) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    RETURN (SELECT pg_get_indexdef(i.indexrelid, place, true) FROM pg_index i
        WHERE i.indrelid = coalesce(pg_partition_root(relation), relation) AND i.indisprimary);
END $body$;

-- The names that the columns of the key have now: of those that it had when the table was installed, or of another key if one of them is gone.
CREATE OR REPLACE FUNCTION {schema}.log_key_names(relation oid, key_index oid, known text[]) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    names text[];
BEGIN
    SELECT array_agg(a.attname::text ORDER BY k.n) INTO names
        FROM (SELECT t.key FROM {schema}.log_tables t WHERE t.relation = log_key_names.relation LIMIT 1) AS t
        CROSS JOIN LATERAL unnest(t.key) WITH ORDINALITY AS k (attnum, n)
        JOIN pg_attribute a ON a.attrelid = log_key_names.relation AND a.attnum = k.attnum AND NOT a.attisdropped
        HAVING count(*) = max(cardinality(t.key));
    IF names IS NULL THEN
        SELECT array_agg(a.attname::text ORDER BY k.n) INTO names
            FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, n)
            JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
            WHERE i.indrelid = log_key_names.relation AND i.indisprimary AND k.n <= i.indnkeyatts;
    END IF;
    RETURN names;
END $body$;

DO $do$
DECLARE
    change record;
    before text;
    after text;
BEGIN
    FOR change IN SELECT * FROM (VALUES
        ('{schema}.log_row()', 'pg_get_indexdef(key_index, n, true) <>',
            'coalesce(pg_get_indexdef(key_index, n, true), {schema}.log_key_column(TG_RELID, n)) <>'),
        ('{schema}.log_statement_sql(oid, text, boolean, boolean, text, text[])', 'number, key, exact_image);',
            'number, replace(key, ''%'', ''%%''), replace(exact_image, ''%'', ''%%''));'),
        ('{schema}.log_make(oid, oid, text[], boolean)', 'SET search_path = pg_catalog SET timezone',
            'SET search_path = pg_catalog, pg_temp SET timezone')) AS c (name, old, new) LOOP
        before := pg_get_functiondef(change.name::regprocedure);
        after := replace(before, change.old, change.new);
        IF after = before AND strpos(before, change.new) = 0 THEN RAISE 'the function % is not the one that this step changes', change.name; END IF;
        EXECUTE after;
    END LOOP;
    FOR change IN SELECT p.oid::regprocedure AS name FROM pg_proc p
        WHERE p.pronamespace = (SELECT pronamespace FROM pg_proc WHERE oid = '{schema}.log_row()'::regprocedure)
            AND p.proconfig @> '{search_path=pg_catalog}' LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, pg_temp', change.name);
    END LOOP;
END $do$;
"#;
