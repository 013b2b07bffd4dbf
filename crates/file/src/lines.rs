//! A writer of lines, whatever they go to.

use std::sync::Arc;

use async_trait::async_trait;
use watchkeeper_core::format::Format;
use watchkeeper_core::{Batch, Change, Cx, Fault, FaultKind, FlushRejection, Result, SinkWriter, Written};

use crate::client::Client;

/// So many bytes are gathered before they are written without being asked to.
pub(crate) const GATHERED_MAX: usize = 1 << 20;

/// Formats on the caller's task and leaves the writing to a thread. The queue to the thread keeps the order
/// of calls, so of each lane.
#[derive(Debug)]
pub(crate) struct LineWriter {
    pub(crate) format: Arc<dyn Format>,
    pub(crate) client: Client,
}

#[async_trait]
impl SinkWriter for LineWriter {
    async fn write(&self, cx: &Cx, _lane: usize, batch: &Arc<Batch>, rows: &[u32]) -> Result<Written> {
        let mut lines = Vec::new();
        let mut written = Written::all(rows);
        for row in rows {
            let start = lines.len();
            match self.format.write(&Change::new(Arc::clone(batch), *row), &mut lines) {
                Ok(()) => end_line(&mut lines, start),
                Err(error) => {
                    lines.truncate(start);
                    written.rejected.push(Fault { row: *row, kind: FaultKind::Reject, error });
                }
            }
        }
        self.client.append(cx, lines).await?;
        Ok(written)
    }

    async fn flush(&self, cx: &Cx) -> Result<Vec<FlushRejection>> {
        self.client.flush(cx).await?;
        Ok(Vec::new())
    }

    async fn close(&self, cx: &Cx) -> Result<()> {
        self.client.close(cx).await
    }
}

/// Adds lines to those that were gathered, if both are small: a large line is not copied. Gives the new ones back when those that
/// were gathered have to be written first.
pub(crate) fn gather(gathered: &mut Vec<u8>, lines: Vec<u8>) -> Option<Vec<u8>> {
    if gathered.is_empty() {
        *gathered = lines;
    } else if lines.len() < GATHERED_MAX {
        gathered.extend_from_slice(&lines);
    } else {
        return Some(lines);
    }
    None
}

/// Ends the line that begins at `start`. A line break inside of it can only be the white space of JSON text
/// that a source stores and a format passes through.
fn end_line(lines: &mut Vec<u8>, start: usize) {
    for byte in &mut lines[start..] {
        if matches!(*byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    lines.push(b'\n');
}
