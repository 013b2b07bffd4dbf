use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use watchkeeper_core::{Address, Verdict};
use watchkeeper_peers::{Settings, TcpPeers};

use crate::support::{A_WHILE, Holder, SOON, Watching, listen, listen_by, tenure};

/// The port of a holder that is dead by now.
async fn orphaned_port(watchings: usize) -> (Address, Vec<Watching>, TcpListener) {
    let mut holder = Holder::start();
    let (address, tenure) = (holder.address.clone(), holder.tenure);
    // A proxy in between, which is cut off below: the watch sees its connection closed.
    let proxy = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
    let proxied = Address(proxy.local_addr().expect("it is bound").to_string().into());
    let watching: Vec<_> = (0..watchings).map(|_| Watching::start(&proxied, tenure)).collect();
    let mut pipes = Vec::new();
    for _ in 0..watchings {
        let (mut near, _) = proxy.accept().await.expect("the watch connects");
        let mut far = TcpStream::connect(&*address.0).await.expect("the holder listens");
        pipes.push(tokio::spawn(async move { tokio::io::copy_bidirectional(&mut near, &mut far).await }));
    }
    let mut watching = watching;
    for watching in &mut watching {
        assert!(watching.is_open_after(A_WHILE).await, "there is a verdict on a living holder");
    }
    holder.kill();
    for pipe in pipes {
        let _ = pipe.await;
    }
    (proxied, watching, proxy)
}

#[tokio::test]
async fn a_stranger_on_the_port_of_the_dead_proves_nothing() {
    let (_, mut watchings, stranger) = orphaned_port(3).await;
    // One is not answered, one is sent back its own words, one is closed each time.
    for manner in 0..3 {
        let (mut socket, _) = stranger.accept().await.expect("the watch connects again");
        tokio::spawn(async move {
            let mut words = [0; 20];
            let _ = socket.read_exact(&mut words).await;
            match manner {
                0 => {}
                1 => socket.write_all(&words).await.expect("the watch listens"),
                _ => return,
            }
            // Open until the watch ends it.
            let _ = socket.read(&mut words).await;
        });
    }
    let closing = tokio::spawn(async move { while stranger.accept().await.is_ok() {} });
    while let Some(watching) = watchings.pop() {
        assert_eq!(watching.verdict().await, Verdict::Unproven);
    }
    closing.abort();
}

#[tokio::test]
async fn a_closed_connection_is_replaced_while_the_tenure_answers() {
    let tenure = tenure();
    let (_listening, address, _roll) = listen(tenure).await;
    let proxy = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
    let proxied = Address(proxy.local_addr().expect("it is bound").to_string().into());
    let mut watching = Watching::start(&proxied, tenure);
    for _ in 0..3 {
        let (mut near, _) = proxy.accept().await.expect("the watch connects");
        let mut far = TcpStream::connect(&*address.0).await.expect("the holder listens");
        let pipe = tokio::spawn(async move { tokio::io::copy_bidirectional(&mut near, &mut far).await });
        assert!(watching.is_open_after(A_WHILE).await, "the tenure answers");
        pipe.abort();
    }
    drop(proxy);
    // Here the proof is wrong, since a proxy is not the process: that is what `is_local` and `takeover` are for.
    assert_eq!(watching.verdict().await, Verdict::Dead);
}

#[tokio::test]
async fn a_flood_of_strangers_does_not_keep_out_a_peer() {
    let tenure = tenure();
    // Only their number can push strangers out, since none of them waits for so long.
    let patient = TcpPeers::new(Settings { answer_within: 100 * SOON, ..Settings::default() });
    let (_listening, address, _roll) = listen_by(&patient.expect("the settings are good"), tenure).await;
    let mut before = Watching::start(&address, tenure);
    assert!(before.is_open_after(A_WHILE).await);
    let mut strangers = Vec::new();
    for _ in 0..400 {
        strangers.push(TcpStream::connect(&*address.0).await.expect("strangers can connect"));
    }
    let mut during = Watching::start(&address, tenure);
    assert!(during.is_open_after(A_WHILE).await, "a peer is answered in the midst of strangers");
    assert!(before.is_open_after(Duration::ZERO).await, "who was answered is not pushed out");
    // The newest may still ask; all before them are gone.
    strangers.truncate(300);
    for mut stranger in strangers {
        assert!(is_closed_in_time(&mut stranger).await, "strangers are told nothing");
    }
}

#[tokio::test]
async fn strangers_who_ask_for_nothing_or_for_something_else_are_sent_away() {
    let (_listening, address, _roll) = listen(tenure()).await;
    for words in [b"".as_slice(), b"wk?1", b"GET / HTTP/1.1\r\nHost: shop\r\n\r\n", b"wk?1................"] {
        let mut stranger = TcpStream::connect(&*address.0).await.expect("strangers can connect");
        stranger.write_all(words).await.expect("strangers can write");
        assert!(is_closed_in_time(&mut stranger).await, "strangers are told nothing");
    }
}

/// Whether a connection is closed soon, without a word.
async fn is_closed_in_time(socket: &mut TcpStream) -> bool {
    let mut words = [0; 1];
    let read = tokio::time::timeout(SOON, socket.read(&mut words)).await.expect("it is closed in time");
    !matches!(read, Ok(1..))
}
