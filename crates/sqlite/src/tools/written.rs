//! How triggers write values into the log.
//!
//! They run in the application's SQLite, whatever its version. Before 3.43 that writes numbers with 15 digits, and neither its `printf` nor its reading of
//! decimals is exact at all sizes. So a number with a fraction is written as integers, by arithmetic that loses nothing. There is no subquery in it: SQLite
//! would not find the columns in one when the application renames them.

/// Up to here every integer is a `double`.
const INTEGER_MAX: u64 = 1 << 53;

/// Below this a number may be cast to an integer, and from the inverse of the other one on its fraction has no bit below 2^-62.
const APART_MAX: u64 = 1 << 62;
const APART_MIN_INVERSE: u64 = 1 << 10;

/// What brings smaller numbers to where they can be taken apart.
const SCALE_BITS: u32 = 60;
const SCALE: u64 = 1 << SCALE_BITS;

/// A value as JSON text. What JSON lacks is marked: bytes, infinities, and numbers as [`real`] writes them.
pub(super) fn value(column: &str) -> String {
    format!(
        "CASE typeof({column})
            WHEN 'blob' THEN '{{\"$hex\":\"' || hex({column}) || '\"}}'
            WHEN 'real' THEN {}
            ELSE json_quote({column}) END",
        real(column)
    )
}

/// A `double` as JSON text: `5.0`, or `{"$real":"high,low,bits"}` for `(high + low / 2^62) * 2^bits`.
///
/// Numbers below 8e-22 and from 4e18 on are written as decimals, with so many digits that the nearest `double` is the one that was meant: `printf` computes them
/// with a `long double` of 64 bits or more, or (since 3.43) as exactly without one.
fn real(column: &str) -> String {
    format!(
        "CASE WHEN {column} = 9e999 THEN '{{\"$numberDouble\":\"Infinity\"}}'
            WHEN {column} = -9e999 THEN '{{\"$numberDouble\":\"-Infinity\"}}'
            WHEN {column} = CAST({column} AS INTEGER) AND abs({column}) < {INTEGER_MAX} THEN CAST({column} AS INTEGER) || '.0'
            WHEN abs({column}) >= {APART_MAX} OR abs({column}) * {SCALE} * {APART_MIN_INVERSE} < 1
                THEN '{{\"$real\":\"' || printf('%!.20e', {column}) || '\"}}'
            WHEN abs({column}) * {APART_MIN_INVERSE} < 1 THEN {}
            ELSE {} END",
        apart(&format!("({column} * {SCALE})"), -i64::from(SCALE_BITS)),
        apart(column, 0),
    )
}

/// Every step is exact: the cast cuts the fraction off, the fraction of a `double` is one, and so is its multiple of a power of two.
fn apart(number: &str, bits: i64) -> String {
    format!(
        "'{{\"$real\":\"' || CAST({number} AS INTEGER) || ',' ||
            CAST(({number} - CAST({number} AS INTEGER)) * {APART_MAX} AS INTEGER) || ',{bits}\"}}'"
    )
}
