//! The rules of leases, as statements. Each decides by the row that it has locked and by a time that was read after that.

/// The tables.
pub(super) const TABLES: &str = r#"
CREATE TABLE {schema}.leases (
    key text COLLATE "C" PRIMARY KEY,
    -- The newest epoch ever granted. It outlives every holder, so rows are never deleted.
    epoch bigint NOT NULL DEFAULT 0,
    -- Empty while nobody holds.
    tenure uuid,
    holder json,
    -- When the lease ends or, without a holder, when it was released.
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The tenure before this one; without a holder, the released one.
    previous json,
    previous_epoch bigint,
    previous_ending text,
    vacant_us bigint
) WITH (fillfactor = 40, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0)"#;

/// Makes the row of a key that nobody has asked for before.
pub(super) const BEGIN: &str = "INSERT INTO {schema}.leases (key) VALUES ($1) ON CONFLICT (key) DO NOTHING";

/// L1 to L6. `$1` key, `$2` tenure, `$3` candidate, `$4` length in µs, `$5` floor, `$6` and `$7` whom to break.
pub(super) const ACQUIRE: &str = "
WITH old AS (SELECT * FROM {schema}.leases WHERE key = $1 FOR UPDATE),
timed AS MATERIALIZED (SELECT old.*, clock_timestamp() AS now FROM old),
judged AS MATERIALIZED (
    SELECT timed.*, tenure IS NOT NULL AND at > now AS held,
        coalesce(tenure = $2 AND at > now, false) AS mine,
        coalesce(tenure = $6 AND epoch = $7, false) AS broken
    FROM timed),
granted AS (
    UPDATE {schema}.leases l SET
        epoch = CASE WHEN j.mine AND $5 < j.epoch THEN j.epoch ELSE greatest(j.epoch, $5) + 1 END,
        tenure = $2,
        holder = $3::json,
        at = j.now + $4 * interval '1 microsecond',
        previous = CASE WHEN j.mine OR j.tenure IS NULL THEN j.previous ELSE j.holder END,
        previous_epoch = CASE WHEN j.mine OR j.tenure IS NULL THEN j.previous_epoch ELSE j.epoch END,
        previous_ending = CASE WHEN j.mine OR j.tenure IS NULL THEN j.previous_ending
            WHEN j.held THEN 'broken' ELSE 'expired' END,
        vacant_us = CASE WHEN j.mine THEN j.vacant_us WHEN j.held THEN 0
            ELSE (extract(epoch FROM j.now - j.at) * 1000000)::int8 END
    FROM judged j
    WHERE l.key = j.key AND (NOT j.held OR j.mine OR j.broken)
    RETURNING l.epoch, l.previous, l.previous_epoch, l.previous_ending, l.vacant_us)
SELECT g.epoch, g.previous::text, g.previous_epoch, g.previous_ending, g.vacant_us,
    j.holder::text, j.epoch, (extract(epoch FROM j.at - j.now) * 1000000)::int8
FROM judged j LEFT JOIN granted g ON true";

/// L7 to L10, for many. A row that someone else has locked is passed over, so that it holds up no other, and nobody ever
/// waits here: there is nothing to deadlock with. `$1` keys, `$2` tenures, `$3` epochs, `$4` lengths in µs.
pub(super) const RENEW: &str = "
WITH asked AS (SELECT * FROM unnest($1, $2, $3, $4) WITH ORDINALITY AS a (key, tenure, epoch, ttl_us, n)),
locked AS (
    SELECT l.key, l.tenure, l.epoch FROM {schema}.leases l
    WHERE l.key = ANY ($1) ORDER BY l.key FOR UPDATE SKIP LOCKED),
renewed AS (
    UPDATE {schema}.leases l SET at = clock_timestamp() + a.ttl_us * interval '1 microsecond'
    FROM locked k JOIN asked a ON a.key = k.key AND a.tenure = k.tenure AND a.epoch = k.epoch
    WHERE l.key = k.key
    RETURNING l.key, l.tenure, l.epoch)
SELECT r.key IS NOT NULL,
    k.key IS NULL AND EXISTS (SELECT 1 FROM {schema}.leases l
        WHERE l.key = a.key AND l.tenure = a.tenure AND l.epoch = a.epoch)
FROM asked a LEFT JOIN locked k ON k.key = a.key
LEFT JOIN renewed r ON r.key = a.key AND r.tenure = a.tenure AND r.epoch = a.epoch
ORDER BY a.n";

/// L11 to L13. `$1` key, `$2` tenure, `$3` epoch, `$4` the channel.
pub(super) const RELEASE: &str = "
WITH released AS (
    UPDATE {schema}.leases SET tenure = NULL, holder = NULL, at = clock_timestamp(),
        previous = holder, previous_epoch = epoch, previous_ending = 'released', vacant_us = 0
    WHERE key = $1 AND tenure = $2 AND epoch = $3 RETURNING key)
SELECT pg_notify($4, '') FROM released";

/// Who holds. `$1` keys.
pub(super) const HOLDERS: &str = "
WITH now AS MATERIALIZED (SELECT clock_timestamp() AS now)
SELECT l.holder::text, l.epoch, (extract(epoch FROM l.at - now.now) * 1000000)::int8
FROM now, unnest($1) WITH ORDINALITY AS a (key, n)
LEFT JOIN {schema}.leases l ON l.key = a.key AND l.tenure IS NOT NULL
ORDER BY a.n";
