use futures_util::future::join_all;
use watchkeeper_core::records::RECORD_BYTES_MAX;
use watchkeeper_core::{ErrorKind, PutOutcome, Result, Revision};

use super::{RecordsBench, bytes};
use crate::laws::lawful::{Broken, Law, TRIES, ensure};

/// R1: of many that create a document at once exactly one is done.
pub async fn r1_of_many_at_once_one_creates(bench: &RecordsBench) -> Law {
    let name = bench.name();
    race(bench, &name, None).await
}

/// R1: of many that update a document at once exactly one is done.
pub async fn r1_of_many_at_once_one_updates(bench: &RecordsBench) -> Law {
    let name = bench.name();
    let revision = bench.put(&name, None, "first").await?;
    race(bench, &name, Some(revision)).await
}

async fn race(bench: &RecordsBench, name: &str, expected: Option<Revision>) -> Law {
    let runs = (0..12).map(|n| async move {
        let text = format!("racer-{n}");
        Ok::<_, watchkeeper_core::Error>((put_patiently(bench, n, name, expected, &text).await?, text))
    });
    let mut winners = Vec::new();
    for answer in join_all(runs).await {
        if let (PutOutcome::Done(revision), text) = answer? {
            winners.push((bytes(&text), revision));
        }
    }
    ensure!(winners.len() == 1, "of twelve at once {} were done", winners.len());
    let stored = bench.text(name).await?;
    ensure!(stored.as_ref() == winners.first(), "{winners:?} won, but {stored:?} is stored");
    Ok(())
}

/// Repeats only what changed nothing: after `Unknown` one would have to look.
async fn put_patiently(
    bench: &RecordsBench,
    n: usize,
    name: &str,
    expected: Option<Revision>,
    text: &str,
) -> Result<PutOutcome> {
    let store = if n.is_multiple_of(2) { &bench.a } else { &bench.b };
    for _ in 1..TRIES {
        match store.put_if(&bench.cx, name, expected, bytes(text)).await {
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                bench.cx.sleep(std::time::Duration::from_millis(25)).await;
            }
            answer => return answer,
        }
    }
    store.put_if(&bench.cx, name, expected, bytes(text)).await
}

/// R1: a document that is not as expected is a conflict, and stays as it is.
pub async fn r1_unexpected_state_is_a_conflict(bench: &RecordsBench) -> Law {
    let name = bench.name();
    let first = bench.put(&name, None, "first").await?;
    bench.ensure_conflict(&name, None).await?;
    let second = bench.put(&name, Some(first), "second").await?;
    ensure!(first != second, "two writings have the revision {first:?}");
    bench.ensure_conflict(&name, Some(first)).await?;
    bench.ensure_conflict(&bench.name(), Some(second)).await
}

/// R2: a revision is never used twice for one name, not even after a delete.
pub async fn r2_revisions_are_never_reused(bench: &RecordsBench) -> Law {
    let name = bench.name();
    let mut used = Vec::new();
    for round in 0..3 {
        let created = bench.put(&name, None, &format!("created {round}")).await?;
        let updated = bench.put(&name, Some(created), &format!("updated {round}")).await?;
        for revision in [created, updated] {
            ensure!(!used.contains(&revision), "{revision:?} is used twice; before were {used:?}");
            used.push(revision);
        }
        bench.a.delete_if(&bench.cx, &name, updated).await?;
    }
    bench.put(&name, None, "last").await?;
    for revision in used {
        bench.ensure_conflict(&name, Some(revision)).await?;
    }
    Ok(())
}

/// R3: what is too large is refused, and changes nothing.
pub async fn r3_oversized_is_refused_and_changes_nothing(bench: &RecordsBench) -> Law {
    let name = bench.name();
    let large = bytes(&"x".repeat(RECORD_BYTES_MAX + 1));
    let created = bench.a.put_if(&bench.cx, &name, None, large.clone()).await.map_err(|error| error.kind());
    ensure!(created == Err(ErrorKind::Config), "an oversized document was answered with {created:?}");
    ensure!(bench.seen(&name).await?.is_none(), "an oversized document was written");
    let revision = bench.put(&name, None, "small").await?;
    let updated = bench.a.put_if(&bench.cx, &name, Some(revision), large).await.map_err(|error| error.kind());
    ensure!(updated == Err(ErrorKind::Config), "an oversized document was answered with {updated:?}");
    let stored = bench.text(&name).await?;
    ensure!(stored == Some((bytes("small"), revision)), "an oversized write changed the document");
    Ok(())
}

/// R3: the largest document that is allowed is taken.
pub async fn r3_largest_is_taken(bench: &RecordsBench) -> Law {
    let name = bench.name();
    let largest = "x".repeat(RECORD_BYTES_MAX);
    bench.put(&name, None, &largest).await?;
    let stored = bench.seen(&name).await?.map(|record| record.bytes.len());
    ensure!(stored == Some(RECORD_BYTES_MAX), "of the largest document {stored:?} bytes are stored");
    Ok(())
}

/// R4: a document of another revision stays.
pub async fn r4_document_of_another_revision_stays(bench: &RecordsBench) -> Law {
    let name = bench.name();
    let first = bench.put(&name, None, "first").await?;
    let second = bench.put(&name, Some(first), "second").await?;
    let answer = bench.b.delete_if(&bench.cx, &name, first).await?;
    ensure!(answer == PutOutcome::Conflict, "deleting an older revision was answered with {answer:?}");
    let stored = bench.text(&name).await?;
    ensure!(stored == Some((bytes("second"), second)), "after a refused delete {stored:?} is stored");
    Ok(())
}

/// R4: a document that is as expected is deleted, once.
pub async fn r4_expected_document_is_deleted(bench: &RecordsBench) -> Law {
    let name = bench.name();
    let revision = bench.put(&name, None, "first").await?;
    let answer = bench.a.delete_if(&bench.cx, &name, revision).await?;
    ensure!(matches!(answer, PutOutcome::Done(_)), "deleting was answered with {answer:?}");
    ensure!(bench.seen(&name).await?.is_none(), "a deleted document is still there");
    let again = bench.a.delete_if(&bench.cx, &name, revision).await?;
    ensure!(again == PutOutcome::Conflict, "deleting again was answered with {again:?}");
    bench.put(&name, None, "new").await?;
    Ok(())
}

/// `get` gives name, bytes and revision as they were put.
pub async fn get_gives_what_was_put(bench: &RecordsBench) -> Law {
    let name = bench.name();
    ensure!(bench.seen(&name).await?.is_none(), "a document that nobody wrote is there");
    let raw = bytes::Bytes::from_static(&[0x00, 0xff, 0xc3, 0x28, 0x0a]);
    for body in [raw, bytes("")] {
        let name = bench.name();
        let PutOutcome::Done(revision) = bench.a.put_if(&bench.cx, &name, None, body.clone()).await? else {
            return Err(Broken::new("a new document is a conflict"));
        };
        let Some(record) = bench.seen(&name).await? else { return Err(Broken::new("a document was not written")) };
        let read = (&record.name, &record.bytes, record.revision);
        ensure!(read == (&name, &body, revision), "put was {body:?} as {revision:?}, got {record:?}");
    }
    Ok(())
}

/// `list` gives the documents under a prefix in the order of their names, and no logs.
pub async fn list_is_by_prefix_in_the_order_of_names(bench: &RecordsBench) -> Law {
    let prefix = bench.name();
    for name in ["/b", "/a/2", "/c", "/a/10", "/a"] {
        bench.put(&format!("{prefix}{name}"), None, name).await?;
    }
    bench.a.append(&bench.cx, &format!("{prefix}/a/log"), bytes("entry"), 9).await?;
    let cases: [(&str, &[&str]); 4] = [
        ("", &["/a", "/a/10", "/a/2", "/b", "/c"]),
        ("/a", &["/a", "/a/10", "/a/2"]),
        ("/a/", &["/a/10", "/a/2"]),
        ("/d", &[]),
    ];
    for (suffix, expected) in cases {
        let found = bench.b.list(&bench.cx, &format!("{prefix}{suffix}")).await?;
        let names: Vec<_> = found.iter().map(|record| record.name[prefix.len()..].to_owned()).collect();
        ensure!(names == expected, "under {suffix:?} should be {expected:?}, but there is {names:?}");
        let kept = found.iter().all(|record| record.name.as_bytes()[prefix.len()..] == record.bytes);
        ensure!(kept, "the documents of the list are mixed up: {found:?}");
    }
    Ok(())
}

/// `list` takes the prefix literally: it is no pattern.
pub async fn list_takes_the_prefix_literally(bench: &RecordsBench) -> Law {
    let prefix = bench.name();
    for sign in ["_", "%", "*", "?", ".", "[a]", "\\", "A"] {
        for name in [format!("{prefix}/{sign}/x"), format!("{prefix}/{sign}{sign}")] {
            bench.put(&name, None, "there").await?;
        }
    }
    bench.put(&format!("{prefix}/a/x"), None, "there").await?;
    for sign in ["_", "%", "*", "?", ".", "[a]", "\\", "A", "a"] {
        let found = bench.b.list(&bench.cx, &format!("{prefix}/{sign}/")).await?;
        let names: Vec<_> = found.into_iter().map(|record| record.name).collect();
        let expected = [format!("{prefix}/{sign}/x")];
        ensure!(names == expected, "under {sign:?} should be {expected:?}, but there is {names:?}");
    }
    Ok(())
}

/// The age of a document is the time since its last write.
pub async fn age_is_since_the_last_write(bench: &RecordsBench) -> Law {
    let name = bench.name();
    let revision = bench.put(&name, None, "old").await?;
    bench.cx.sleep(bench.while_aging).await;
    let old = bench.seen(&name).await?.map(|record| record.age);
    let (least, most) = (bench.while_aging / 2, bench.while_aging * 10);
    ensure!(old.is_some_and(|age| age >= least && age < most), "after {:?} the age is {old:?}", bench.while_aging);
    bench.put(&name, Some(revision), "new").await?;
    let new = bench.seen(&name).await?.map(|record| record.age);
    ensure!(new.is_some_and(|age| age < least), "just after a write the age is {new:?}");
    Ok(())
}
