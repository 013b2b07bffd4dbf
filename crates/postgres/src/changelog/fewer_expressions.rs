//! The function of a plain table with fewer expressions: the server prepares each of them anew in every transaction.

/// Changes functions that earlier steps have made. Tables that were logged before get theirs when `install` names them again.
///
/// * One expression asks whether a statement is the only open one and notes that it has ended. Where the fast path then logs nothing, the
///   general way finds the statement as it was.
/// * A setting is looked for in a text, which takes less than comparing it with the elements of an array.
/// * The JSON of an integer is its text. A key of integers that becomes one of another type takes the general way.
/// * What notes that a statement begins reads and writes nothing but a setting, and so needs no snapshot.
pub(super) const STEP: &str = r#"
DO $do$
DECLARE
    change record;
    before text;
    after text;
BEGIN
    FOR change IN SELECT * FROM (VALUES
        ('{schema}.log_make_plain(oid, oid, text[], text[], text)', 'IF (pg_catalog.current_setting(',
            'IF (CASE WHEN pg_catalog.current_setting('),
        ('{schema}.log_make_plain(oid, oid, text[], text[], text)', '%12$s) THEN',
            '%12$s THEN pg_catalog.set_config(''watchkeeper.open_%1$s'', '''', true) OPERATOR(pg_catalog.=) '''' END) THEN'),
        ('{schema}.log_make_plain(oid, oid, text[], text[], text)', '            state := pg_catalog.set_config(''watchkeeper.open_%1$s'', '''', true);
            RETURN NULL;', '            RETURN NULL;'),
        ('{schema}.log_make_plain(oid, oid, text[], text[], text)', '    -- The general way, with the settings that it needs.',
            '    -- What the fast path has noted too early.
    IF pg_catalog.current_setting(''watchkeeper.open_%1$s'', true) OPERATOR(pg_catalog.=) '''' THEN
        state := pg_catalog.set_config(''watchkeeper.open_%1$s'', pg_catalog.left(TG_OP, 1), true);
    END IF;
    -- The general way, with the settings that it needs.'),
        ('{schema}.log_make_plain(oid, oid, text[], text[], text)', 'pg_catalog.current_setting(''''extra_float_digits'''')
            OPERATOR(pg_catalog.=) ANY (''''{1,2,3}''''::pg_catalog.text[])',
            'pg_catalog.strpos(''''123'''', pg_catalog.current_setting(''''extra_float_digits'''')) OPERATOR(pg_catalog.>) 0'),
        ('{schema}.log_plain_sql(oid, text[], text[], text, text)', 'DECLARE
',
            'DECLARE
    has_integers boolean := NOT EXISTS (SELECT FROM unnest(names) AS k (name) LEFT JOIN pg_attribute a ON a.attrelid = relation AND a.attname = k.name
        WHERE coalesce(a.atttypid, 0) <> ALL (''{int2,int4,int8}''::regtype[]::oid[]));
'),
        ('{schema}.log_plain_sql(oid, text[], text[], text, text)', 'format(''pg_catalog.to_json(%I)::pg_catalog.text'', k.name)',
            'format(CASE WHEN has_integers THEN ''%I::pg_catalog.text'' ELSE ''pg_catalog.to_json(%I)::pg_catalog.text'' END, k.name)'),
        ('{schema}.log_plain_sql(oid, text[], text[], text, text)', 'names, types, {schema}.log_plain_key_types());',
            'names, types, CASE WHEN has_integers THEN ''{int2,int4,int8}''::regtype[]::oid[] ELSE {schema}.log_plain_key_types() END);'),
        ('{schema}.log_make_best(oid, oid, text[], boolean, text)', 'RETURNS trigger LANGUAGE plpgsql AS %L',
            'RETURNS trigger LANGUAGE plpgsql STABLE AS %L')) AS c (name, old, new) LOOP
        before := pg_get_functiondef(change.name::regprocedure);
        after := replace(before, change.old, change.new);
        IF after = before THEN RAISE 'the function % is not the one that this step changes', change.name; END IF;
        EXECUTE after;
    END LOOP;
END $do$;
"#;
