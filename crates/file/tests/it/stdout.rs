//! What only standard output does.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use watchkeeper_core::{ErrorKind, Grade, Sink};
use watchkeeper_file::StdoutSink;

use crate::support::{block_on, format, open, put};

/// Takes so many bytes, then fails once, then takes everything.
#[derive(Clone)]
struct Failing {
    left: Arc<Mutex<Option<usize>>>,
    error: io::ErrorKind,
    taken: Arc<Mutex<Vec<u8>>>,
}

impl Write for Failing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut left = self.left.lock().expect("no test panics here");
        let most = left.unwrap_or(bytes.len()).min(bytes.len());
        if most == 0 && left.take().is_some() {
            return Err(self.error.into());
        }
        if let Some(left) = left.as_mut() {
            *left -= most;
        }
        self.taken.lock().expect("no test panics here").extend_from_slice(&bytes[..most]);
        Ok(most)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_line_that_broke_off_is_never_merged_with_the_next() {
    block_on(async {
        let (left, taken) = (Arc::new(Mutex::new(Some(10))), Arc::default());
        let output = Failing { left, error: io::ErrorKind::BrokenPipe, taken };
        let sink = StdoutSink::into_writer(format("native"), output.clone());
        let error = put(&*open(&sink, 1).await, &[1]).await.expect_err("the output fails");
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains("nobody reads it any more"), "{error}");
        put(&*open(&sink, 1).await, &[1, 2]).await.expect("the output works again");
        let text = String::from_utf8(output.taken.lock().expect("no test panics here").clone()).expect("text");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], r#"{"_id":"log"#.get(..10).expect("ten bytes"));
        let whole = |line: &&str| serde_json::from_str::<serde_json::Value>(line).is_ok();
        assert_eq!((lines.len(), lines[1..].iter().filter(|line| whole(line)).count()), (3, 2), "{text}");
    });
}

#[test]
fn it_is_plain_and_settles_at_once() {
    let profile = StdoutSink::new(format("native")).profile();
    assert_eq!((profile.grade, profile.settle.is_zero()), (Grade::Plain, true));
}
