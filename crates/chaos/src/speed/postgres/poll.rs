//! The loop that people write over a log of changes, and that loses what commits late: a thousand after the last number.

use watchkeeper_core::{Error, Result};
use watchkeeper_postgres::tokio_postgres::types::{FromSql, Type};

use super::{connect, unavailable};
use crate::speed::meter::{Measurement, Meter, Start};
use crate::speed::task::BenchTask;

const NEXT: &str = "SELECT id, entity, operation, key, before, after, time FROM watchkeeper.log
    WHERE id > $1 ORDER BY id LIMIT 1000";

/// A document as it came.
struct Raw<'a>(&'a [u8]);

impl<'a> FromSql<'a> for Raw<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(raw))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

pub(super) async fn consume(bench_task: &BenchTask, meter: &Meter) -> Result<Measurement> {
    let client = connect(&bench_task.url).await?;
    let next = client.prepare(NEXT).await.map_err(unavailable)?;
    let mut last = 0_i64;
    let start = Start::now();
    loop {
        let rows = client.query(&next, &[&last]).await.map_err(unavailable)?;
        if rows.is_empty() {
            return Err(Error::unavailable("the log has fewer changes"));
        }
        for row in &rows {
            last = row.get(0);
            let after: Option<Raw<'_>> = row.get(5);
            std::hint::black_box((row.get::<_, &str>(2), after.map(|after| after.0.len())));
            if meter.add(1) {
                return Ok(start.took());
            }
        }
    }
}
