//! The rules of checkpoints, as statements.

/// The tables.
pub(super) const TABLES: &str = r#"
CREATE TABLE {schema}.checkpoints (
    key text COLLATE "C" PRIMARY KEY,
    -- The newest claim: nobody else can write.
    epoch bigint NOT NULL,
    tenure uuid NOT NULL,
    seq bigint NOT NULL,
    checkpoint json,
    -- The newest number of the ledger.
    ledger bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 40, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);
CREATE TABLE {schema}.ledger (
    key text COLLATE "C" NOT NULL,
    number bigint NOT NULL,
    entry json NOT NULL,
    body bytea,
    resolution text,
    PRIMARY KEY (key, number)
)"#;

/// Makes the row of a key that nobody has claimed before. Its ledger may be there already, if a row was removed: its numbers go on.
/// `$1` key, `$2` epoch, `$3` tenure.
pub(super) const BEGIN: &str = "INSERT INTO {schema}.checkpoints (key, epoch, tenure, seq, ledger)
SELECT $1, $2, $3, 0, coalesce(max(l.number), 0) FROM {schema}.ledger l WHERE l.key = $1
ON CONFLICT (key) DO NOTHING RETURNING key";

/// The claim of a key without its lock. `$1` key.
pub(super) const CLAIMED: &str = "SELECT epoch, tenure, checkpoint::text FROM {schema}.checkpoints WHERE key = $1";

/// C1 to C4, unless the row is locked. `$1` key, `$2` epoch, `$3` tenure.
pub(super) const CLAIM_NOW: &str = "
WITH old AS (SELECT * FROM {schema}.checkpoints WHERE key = $1 FOR UPDATE SKIP LOCKED),
taken AS (
    UPDATE {schema}.checkpoints c SET epoch = $2, tenure = $3, seq = 0
    FROM old WHERE c.key = old.key AND old.epoch < $2 RETURNING c.key)
SELECT old.epoch, old.tenure, old.checkpoint::text FROM old LEFT JOIN taken ON true";

/// The same, waiting for whoever has locked the row.
pub(super) const CLAIM: &str = "
WITH old AS (SELECT * FROM {schema}.checkpoints WHERE key = $1 FOR UPDATE),
taken AS (
    UPDATE {schema}.checkpoints c SET epoch = $2, tenure = $3, seq = 0
    FROM old WHERE c.key = old.key AND old.epoch < $2 RETURNING c.key)
SELECT old.epoch, old.tenure, old.checkpoint::text FROM old LEFT JOIN taken ON true";

/// Whose open transaction has locked a row of an older claim. A locked row names the transaction, and that its session.
/// `$1` key, `$2` epoch.
pub(super) const BLOCKERS: &str = "
SELECT l.pid, coalesce(a.usename::text, ''), coalesce(a.application_name, ''), coalesce(a.state, ''),
    coalesce(extract(epoch FROM clock_timestamp() - a.xact_start)::int8, 0)
FROM {schema}.checkpoints c
JOIN pg_catalog.pg_locks l ON l.locktype = 'transactionid' AND l.transactionid = c.xmax AND l.granted
LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
WHERE c.key = $1 AND c.epoch < $2 AND l.pid <> pg_backend_pid()";

/// Ends those sessions, looked up anew by the very statement that ends them.
pub(super) const EVICT: &str = "
SELECT pg_terminate_backend(l.pid) FROM {schema}.checkpoints c
JOIN pg_catalog.pg_locks l ON l.locktype = 'transactionid' AND l.transactionid = c.xmax AND l.granted
WHERE c.key = $1 AND c.epoch < $2 AND l.pid <> pg_backend_pid()";

/// C5 to C7 and C10 for many. `{lock}` is `SKIP LOCKED`, or nothing to wait for locked rows. `$1` keys, `$2` epochs, `$3` tenures,
/// `$4` seqs, `$5` checkpoints, `$6` counts of entries; entries: `$7` of which write, `$8` at which place, `$9` entry, `$10` body;
/// resolutions: `$11` of which write, `$12` number, `$13` word.
const COMMIT: &str = "
WITH asked AS (
    SELECT * FROM unnest($1, $2, $3, $4, $5, $6) WITH ORDINALITY AS a (key, epoch, tenure, seq, checkpoint, entries, n)),
locked AS (
    SELECT c.key, c.epoch, c.tenure, c.seq, c.ledger FROM {schema}.checkpoints c
    WHERE c.key = ANY ($1) ORDER BY c.key FOR UPDATE {lock}),
written AS (
    UPDATE {schema}.checkpoints c
    SET seq = a.seq, checkpoint = a.checkpoint::json, ledger = k.ledger + a.entries
    FROM locked k JOIN asked a ON a.key = k.key AND a.epoch = k.epoch AND a.tenure = k.tenure AND a.seq = k.seq + 1
    WHERE c.key = k.key
    RETURNING a.n, c.key, k.ledger AS before),
noted AS (
    INSERT INTO {schema}.ledger (key, number, entry, body)
    SELECT w.key, w.before + e.place, e.entry::json, e.body
    FROM unnest($7, $8, $9, $10) AS e (n, place, entry, body) JOIN written w ON w.n = e.n),
settled AS (
    UPDATE {schema}.ledger l SET resolution = r.word
    FROM unnest($11, $12, $13) AS r (n, number, word) JOIN written w ON w.n = r.n
    WHERE l.key = w.key AND l.number = r.number)
SELECT w.n IS NOT NULL, k.key IS NOT NULL AND k.epoch = a.epoch AND k.tenure = a.tenure, k.seq,
    k.key IS NULL AND EXISTS (SELECT 1 FROM {schema}.checkpoints c
        WHERE c.key = a.key AND c.epoch = a.epoch AND c.tenure = a.tenure),
    k.key IS NULL AND NOT EXISTS (SELECT 1 FROM {schema}.checkpoints c WHERE c.key = a.key)
FROM asked a LEFT JOIN locked k ON k.key = a.key LEFT JOIN written w ON w.n = a.n ORDER BY a.n";

pub(super) fn commit(waiting: bool) -> String {
    COMMIT.replace("{lock}", if waiting { "" } else { "SKIP LOCKED" })
}

/// C9. `$1` key, `$2` after, `$3` open only, `$4` limit.
pub(super) const LEDGER: &str = "SELECT number, entry::text, body, resolution FROM {schema}.ledger
WHERE key = $1 AND number > $2 AND (resolution IS NULL OR NOT $3) ORDER BY number LIMIT $4";
