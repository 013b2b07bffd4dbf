//! What only files do: rotation, torn lines, full disks, settings.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use watchkeeper_core::payload::JsonPayload;
use watchkeeper_core::{Cx, ErrorKind, FaultKind, Grade, Payload, Result, Severity, Sink, ValueRef, Visit};
use watchkeeper_file::{FileSink, Fsync, Settings};

use crate::support::{Folder, ManualClock, batch_of, block_on, context, cx, format, open, open_as, put, sink, write};

#[test]
fn a_line_stands_for_a_change_in_the_chosen_format() {
    let folder = Folder::new();
    block_on(async {
        for (epoch, name) in [(1, "native"), (2, "debezium"), (3, "cloudevents")] {
            let sink = FileSink::new(folder.settings(), format(name)).expect("the settings are good");
            put(&*open(&sink, epoch).await, &[epoch]).await.expect("it is written");
        }
    });
    let lines = folder.lines();
    let reported = [&lines[0]["document"], &lines[1]["after"], &lines[2]["data"]];
    assert_eq!(reported.map(|row| row["n"].as_u64()), [Some(1), Some(2), Some(3)]);
    assert_eq!(folder.names(), ["out-000001.ndjson"]);
}

#[test]
fn no_file_gets_larger_than_the_limit_and_no_line_is_split() {
    let folder = Folder::new();
    let line = block_on(async {
        put(&*open(&sink(folder.settings()), 1).await, &[100]).await.expect("it is written");
        folder.read("out-000001.ndjson").len() as u64
    });
    let rotating = Settings { rotate_bytes: Some(line * 3 + 1), ..folder.settings() };
    block_on(async {
        let writer = open(&sink(rotating), 2).await;
        put(&*writer, &[101]).await.expect("it is written");
        put(&*writer, &[102, 103, 104, 105, 106]).await.expect("it is written");
        put(&*writer, &[107]).await.expect("it is written");
    });
    assert_eq!(folder.names(), ["out-000001.ndjson", "out-000002.ndjson", "out-000003.ndjson"]);
    let lines = folder.names().iter().map(|name| folder.read(name).lines().count()).collect::<Vec<_>>();
    assert_eq!(lines, [3, 3, 2]);
    assert_eq!(folder.numbers(), (100..108).collect::<Vec<_>>());
}

#[test]
fn a_line_larger_than_a_file_gets_one_of_its_own() {
    let folder = Folder::new();
    let rotating = Settings { rotate_bytes: Some(5), ..folder.settings() };
    block_on(async { put(&*open(&sink(rotating), 1).await, &[1, 2, 3]).await.expect("it is written") });
    assert_eq!(folder.names().len(), 3);
    assert_eq!(folder.numbers(), [1, 2, 3]);
}

#[test]
fn a_file_is_ended_by_its_age_on_the_clock_of_the_instance() {
    let folder = Folder::new();
    let rotating = Settings { rotate_after: Some(Duration::from_secs(60)), ..folder.settings() };
    let clock = ManualClock::new();
    let cx = Cx::new(Arc::new(clock.clone()));
    block_on(async {
        let writer = open_as(&sink(rotating), &cx, &context(1)).await.expect("the sink opens");
        // The age of an empty file does not count.
        for (seconds, n) in [(100, 1), (59, 2), (1, 3), (59, 4), (600, 5)] {
            clock.advance(Duration::from_secs(seconds));
            write(&*writer, &cx, 0, &[n]).await.expect("it is accepted");
            writer.flush(&cx).await.expect("it is flushed");
        }
    });
    let counts: Vec<_> = folder.names().iter().map(|name| folder.read(name).lines().count()).collect();
    assert_eq!(counts, [2, 2, 1]);
    assert_eq!(folder.numbers(), [1, 2, 3, 4, 5]);
}

#[test]
fn an_incomplete_last_line_is_cut_off_and_not_merged() {
    let whole = r#"{"document":{"n":1}}"#;
    // Also without any line break, longer than what is read at once, and at its edge.
    let long = "x".repeat(64 * 1024);
    let torn = [
        (format!("{whole}\n{{\"docu"), vec![1, 9]),
        (format!("{whole}\n{{\"a\":\"{long}{long}"), vec![1, 9]),
        (format!("{whole}\n{long}"), vec![1, 9]),
        (format!("{{\"a\":\"{long}{long}"), vec![9]),
        ("{".to_owned(), vec![9]),
        (format!("{whole}\n"), vec![1, 9]),
        (String::new(), vec![9]),
    ];
    for (content, expected) in torn {
        let folder = Folder::new();
        folder.put("out-000003.ndjson", &content);
        block_on(async { put(&*open(&sink(folder.settings()), 1).await, &[9]).await.expect("it is written") });
        assert_eq!(folder.numbers(), expected, "after {} bytes", content.len());
        assert_eq!(folder.names(), ["out-000003.ndjson"]);
    }
}

#[test]
fn the_newest_file_is_the_one_with_the_highest_number() {
    let folder = Folder::new();
    for name in ["out-9.ndjson", "out-000010.ndjson", "outer-000011.ndjson", "out-12.txt", "out-x.ndjson"] {
        folder.put(name, "{}\n");
    }
    block_on(async { put(&*open(&sink(folder.settings()), 1).await, &[1]).await.expect("it is written") });
    assert_eq!(folder.read("out-000010.ndjson").lines().count(), 2);
}

#[test]
fn a_full_disk_is_reported_and_nothing_is_lost_once_there_is_room() {
    let folder = Folder::new();
    let name = folder.file("out-000001.ndjson");
    std::os::unix::fs::symlink("/dev/full", &name).expect("a link can be made");
    block_on(async {
        let sink = sink(folder.settings());
        let writer = open(&sink, 1).await;
        let error = put(&*writer, &[1]).await.expect_err("the disk is full");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("the disk is full [WK-UNAVAILABLE]; make room"), "{error}");
        // What is accepted now would stand behind a hole: the next flush says so.
        let again = put(&*writer, &[2]).await.expect_err("the writer has failed");
        assert_eq!(again.kind(), ErrorKind::Unavailable, "{again}");
        fs::remove_file(&name).expect("the link can be removed");
        put(&*open(&sink, 1).await, &[1, 2]).await.expect("there is room");
    });
    assert_eq!(folder.numbers(), [1, 2]);
}

#[test]
fn a_flush_that_fails_takes_back_what_it_wrote() {
    let folder = Folder::new();
    let rotating = Settings { rotate_bytes: Some(250), ..folder.settings() };
    block_on(async {
        let writer = open(&sink(rotating.clone()), 1).await;
        put(&*writer, &[1]).await.expect("it is written");
        // The third file cannot be begun: its name is taken.
        fs::create_dir(folder.file("out-000003.ndjson")).expect("a folder can be made");
        let error = put(&*writer, &[2, 3, 4, 5, 6, 7]).await.expect_err("the name is taken");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        fs::remove_dir(folder.file("out-000003.ndjson")).expect("the folder is empty");
        // What comes after a failure is not written, however much it is: it would stand behind a hole.
        let large = format!(r#"{{"n":8,"pad":"{}"}}"#, "x".repeat(1 << 20));
        let batch = batch_of(Arc::new(JsonPayload), &[large.as_bytes()]);
        writer.write(&cx(), 0, &batch, &[0]).await.expect("the next flush tells it");
        writer.flush(&cx()).await.expect_err("the writer has failed before");
        assert_eq!((folder.names(), folder.numbers()), (vec!["out-000001.ndjson".to_owned()], vec![1]));
        put(&*open(&sink(rotating), 1).await, &[2, 3, 4]).await.expect("it is written");
    });
    assert_eq!(folder.numbers(), [1, 2, 3, 4]);
}

#[test]
fn two_lanes_write_beside_each_other_and_keep_their_own_order() {
    let folder = Folder::new();
    let rotating = Settings { rotate_bytes: Some(4_000), ..folder.settings() };
    block_on(async {
        let writer = open(&sink(rotating), 1).await;
        let lane = |lane: usize, first: u64| {
            let writer = Arc::clone(&writer);
            async move {
                for n in (first..first + 200).step_by(2) {
                    write(&*writer, &cx(), lane, &[n, n + 1]).await.expect("it is accepted");
                    if n % 20 == 0 {
                        writer.flush(&cx()).await.expect("it is flushed");
                    }
                }
            }
        };
        join(lane(0, 1_000), lane(1, 2_000)).await;
        writer.flush(&cx()).await.expect("it is flushed");
    });
    let (one, other): (Vec<u64>, Vec<u64>) = folder.numbers().into_iter().partition(|n| *n < 2_000);
    assert_eq!(one, (1_000..1_200).collect::<Vec<_>>());
    assert_eq!(other, (2_000..2_200).collect::<Vec<_>>());
    assert!(folder.names().len() > 5, "{:?}", folder.names());
}

#[test]
fn what_was_not_flushed_is_forgotten_with_its_writer() {
    let folder = Folder::new();
    block_on(async {
        let sink = sink(folder.settings());
        let writer = open(&sink, 1).await;
        write(&*writer, &cx(), 0, &[1]).await.expect("it is accepted");
        drop(writer);
        put(&*open(&sink, 2).await, &[2]).await.expect("it is written");
    });
    assert_eq!(folder.numbers(), [2]);
}

#[test]
fn more_than_is_gathered_is_written_before_a_flush_but_in_order() {
    let folder = Folder::new();
    block_on(async {
        let writer = open(&sink(folder.settings()), 1).await;
        let body = format!(r#"{{"n":1,"pad":"{}"}}"#, "x".repeat(700_000));
        let large = batch_of(Arc::new(JsonPayload), &[body.as_bytes(), body.as_bytes()]);
        writer.write(&cx(), 0, &large, &[0, 1]).await.expect("it is accepted");
        put(&*writer, &[2]).await.expect("it is written");
    });
    assert_eq!(folder.numbers(), [1, 1, 2]);
}

#[test]
fn a_file_that_is_removed_while_it_is_open_is_noticed() {
    let folder = Folder::new();
    block_on(async {
        let sink = sink(folder.settings());
        let writer = open(&sink, 1).await;
        put(&*writer, &[1]).await.expect("it is written");
        fs::remove_file(folder.file("out-000001.ndjson")).expect("it is there");
        let error = put(&*writer, &[2]).await.expect_err("nobody will ever read it");
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown), "{error}");
        let cause =
            format!("{} was removed or replaced while it was written", folder.file("out-000001.ndjson").display());
        assert!(error.to_string().contains(&cause), "{error}");
        put(&*open(&sink, 1).await, &[2]).await.expect("it is written");
    });
    assert_eq!(folder.numbers(), [2]);
}

#[test]
fn a_file_that_is_replaced_or_moved_while_it_is_open_is_noticed() {
    for rotating in [None, Some(1)] {
        let folder = Folder::new();
        block_on(async {
            let sink = sink(Settings { rotate_bytes: rotating, ..folder.settings() });
            let writer = open(&sink, 1).await;
            put(&*writer, &[1]).await.expect("it is written");
            fs::rename(folder.file("out-000001.ndjson"), folder.file("moved")).expect("it is there");
            folder.put("out-000001.ndjson", "");
            let error = put(&*writer, &[2]).await.expect_err("nobody will look for it there");
            assert!(error.to_string().contains("was removed or replaced while it was written"), "{error}");
            put(&*open(&sink, 1).await, &[2]).await.expect("it is written");
        });
        assert_eq!(folder.numbers(), [2]);
    }
}

#[test]
fn a_row_that_cannot_be_formatted_is_rejected_alone() {
    let folder = Folder::new();
    block_on(async {
        let writer = open(&sink(folder.settings()), 1).await;
        let batch = batch_of(Arc::new(JsonPayload), &[br#"{"n":1}"#, br#"{"n":"#, br#"{"n":3}"#]);
        let written = writer.write(&cx(), 0, &batch, &[0, 1, 2]).await.expect("it is accepted");
        assert_eq!(written.done, 3);
        let rejected: Vec<_> = written.rejected.iter().map(|fault| (fault.row, fault.kind)).collect();
        assert_eq!(rejected, [(1, FaultKind::Reject)]);
        writer.flush(&cx()).await.expect("it is flushed");
    });
    assert_eq!(folder.numbers(), [1, 3]);
}

/// A source that stores JSON as it was written, with line breaks in it.
#[derive(Debug)]
struct Stored;

impl Payload for Stored {
    fn get<'a>(&self, _body: &'a [u8], _path: &[&str]) -> Result<Option<ValueRef<'a>>> {
        Ok(None)
    }

    fn walk(&self, body: &[u8], visit: &mut dyn Visit) -> Result<()> {
        visit.value(ValueRef::Json(String::from_utf8_lossy(body)));
        Ok(())
    }
}

#[test]
fn json_with_line_breaks_in_it_stays_one_line() {
    let folder = Folder::new();
    block_on(async {
        let writer = open(&sink(folder.settings()), 1).await;
        let batch = batch_of(Arc::new(Stored), &[b"{\r\n  \"n\": 5\n}"]);
        writer.write(&cx(), 0, &batch, &[0]).await.expect("it is accepted");
        writer.flush(&cx()).await.expect("it is flushed");
    });
    assert_eq!(folder.numbers(), [5]);
}

#[test]
fn every_policy_of_syncing_keeps_what_is_flushed_and_closed() {
    for fsync in [Fsync::EveryFlush, Fsync::Interval(Duration::from_secs(3_600)), Fsync::Never] {
        let folder = Folder::new();
        block_on(async {
            let writer = open(&sink(Settings { fsync, ..folder.settings() }), 1).await;
            put(&*writer, &[1]).await.expect("it is written");
            writer.close(&cx()).await.expect("it is closed");
            assert!(writer.flush(&cx()).await.is_err(), "nothing can be promised after the end");
        });
        assert_eq!(folder.numbers(), [1], "{fsync:?}");
    }
}

#[test]
fn a_folder_that_is_none_is_reported_by_check_and_by_open() {
    let folder = Folder::new();
    folder.put("plain", "");
    let cases = [("missing", "the folder does not exist"), ("plain", "a part of its path is no folder")];
    for (name, cause) in cases {
        let sink = sink(Settings::new(folder.file(name), "out"));
        block_on(async {
            let found = sink.check(&cx()).await.expect("it can be checked");
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].severity, Severity::Error);
            assert!(found[0].what.contains(cause) && found[0].remedy.is_some(), "{found:?}");
            let refused = open_as(&sink, &cx(), &context(1)).await.expect_err("there is no folder");
            assert_eq!(refused.kind(), ErrorKind::Config);
            assert!(refused.to_string().contains(cause), "{refused}");
        });
    }
}

#[test]
fn a_good_folder_is_found_good_and_left_as_it_was() {
    let folder = Folder::new();
    block_on(async {
        assert_eq!(sink(folder.settings()).check(&cx()).await.expect("it can be checked"), []);
        let loose = sink(Settings { fsync: Fsync::Never, ..folder.settings() });
        let found = loose.check(&cx()).await.expect("it can be checked");
        assert_eq!(found.iter().map(|finding| finding.severity).collect::<Vec<_>>(), [Severity::Note]);
    });
    assert_eq!(fs::read_dir(folder.path()).expect("it can be listed").count(), 0);
}

#[test]
fn it_is_fenced_and_settles_at_once() {
    let profile = sink(Folder::new().settings()).profile();
    assert_eq!((profile.grade, profile.settle), (Grade::Fenced, Duration::ZERO));
}

#[test]
fn settings_that_make_no_sense_are_refused_with_a_remedy() {
    let good = Settings::new("somewhere", "out");
    good.validate().expect("these are good");
    let zero = Duration::ZERO;
    let bad = [
        Settings { prefix: String::new(), ..good.clone() },
        Settings { prefix: "a/b".to_owned(), ..good.clone() },
        Settings { prefix: ".hidden".to_owned(), ..good.clone() },
        Settings { folder: "".into(), ..good.clone() },
        Settings { rotate_bytes: Some(0), ..good.clone() },
        Settings { rotate_after: Some(zero), ..good.clone() },
        Settings { fsync: Fsync::Interval(zero), ..good },
    ];
    for settings in bad {
        let refused = FileSink::new(settings.clone(), format("native")).expect_err("it makes no sense");
        assert_eq!(refused.kind(), ErrorKind::Config, "{settings:?}");
        assert!(refused.to_string().contains("; "), "{refused}");
    }
}
