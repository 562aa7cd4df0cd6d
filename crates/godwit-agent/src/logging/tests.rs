use std::io::{PipeReader, Read as _};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::queue::{CAPACITY, Queue};
use super::*;
use crate::testing::PATIENCE;

/// Longer than a pipe, so that one blocks the writer.
const LONG: usize = 128 << 10;

/// A queue whose writer writes into a pipe.
fn into_pipe(capacity: usize) -> (Arc<Queue>, PipeReader) {
    let (reader, mut writer) = io::pipe().expect("a pipe");
    let queue = Arc::new(Queue::new(capacity));
    let lines = queue.take_lines().expect("the first time");
    let writes = queue.clone();
    thread::spawn(move || writes.write_all(&lines, &mut writer, || ()));
    (queue, reader)
}

fn wait_until(what: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !what() {
        assert!(Instant::now() < end, "it does not come");
        thread::yield_now();
    }
}

/// Reads up to the line that ends with `last`.
fn read_to(reader: &mut PipeReader, last: &str) -> String {
    let mut text = Vec::new();
    let mut chunk = [0; 4096];
    while !text.ends_with(last.as_bytes()) {
        let length = reader.read(&mut chunk).expect("it is open");
        assert_ne!(length, 0, "it ended early");
        text.extend(&chunk[..length]);
    }
    String::from_utf8(text).expect("it was text")
}

#[test]
fn a_reader_that_sleeps_costs_lines_and_nothing_else() {
    let (queue, mut reader) = into_pipe(2);
    assert_eq!(queue.warning(), None);
    let long = [vec![b'x'; LONG], b"\n".to_vec()].concat();
    queue.push(long);
    wait_until(|| queue.warning().is_some());
    let begun = Instant::now();
    for number in 0..1000 {
        queue.push(format!("{number}\n").into_bytes());
    }
    assert!(begun.elapsed() < PATIENCE / 4, "it has waited");
    // Two wait in the queue.
    assert_eq!(queue.lost(), 998);
    let warning = queue.warning().expect("it is said");
    assert!(warning.contains("998 lines"), "{warning}");
    queue.flush(Duration::from_millis(10));
    // Somebody reads again.
    let text = read_to(&mut reader, "0\n1\n");
    assert_eq!(text.len(), LONG + 1 + 4);
    wait_until(|| !queue.warning().is_some_and(|it| it.contains("nobody")));
    queue.push(b"after\n".to_vec());
    let text = read_to(&mut reader, "after\n");
    assert_eq!(text, "WARN 998 lines are lost here\nafter\n");
    assert_eq!(queue.lost(), 998);
}

#[test]
fn what_is_said_is_written_in_order_and_flushed() {
    let (queue, mut reader) = into_pipe(CAPACITY);
    for number in 0..100 {
        queue.push(format!("{number}\n").into_bytes());
    }
    queue.flush(PATIENCE);
    let expected: String = (0..100).map(|number| format!("{number}\n")).collect();
    // It is in the pipe by now: nothing is waited for.
    let mut text = vec![0; expected.len()];
    reader.read_exact(&mut text).expect("it is there");
    assert_eq!(text, expected.as_bytes());
    assert_eq!((queue.lost(), queue.warning()), (0, None));
}

#[test]
fn a_line_that_can_not_be_written_is_counted() {
    let (queue, reader) = into_pipe(CAPACITY);
    drop(reader);
    queue.push(b"nobody is there\n".to_vec());
    wait_until(|| queue.lost() == 1);
    assert!(queue.warning().is_some());
}

#[test]
fn a_panic_says_where_it_was() {
    let (sender, texts) = std::sync::mpsc::channel();
    let former = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if thread::current().name() == Some("gw-doomed") {
            let _ = sender.send(obituary(panic));
        } else {
            former(panic);
        }
    }));
    let doomed = thread::Builder::new().name("gw-doomed".into());
    let doomed = doomed.spawn(|| panic!("out of ideas")).expect("a thread");
    assert!(doomed.join().is_err());
    let text = texts.recv().expect("it has spoken");
    assert!(text.starts_with("thread 'gw-doomed' panicked at"), "{text}");
    assert!(text.contains("out of ideas"), "{text}");
}

/// What is written of lines that `say` has said.
fn written(say: impl FnOnce()) -> Vec<String> {
    #[derive(Clone, Default)]
    struct Text(Arc<Mutex<Vec<u8>>>);
    impl Write for Text {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("nobody panics").write(line)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    // A test has budgets of its own.
    thread_local! {
        static OWN: Bounds = const { Bounds::new() };
    }
    let text = Text::default();
    let writer = text.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .without_time()
        .with_ansi(false)
        .with_target(false)
        .map_event_format(|inner| Bounded {
            inner,
            admit: |kind, rate, example| {
                OWN.with(|it| it.admit(kind, rate, Instant::now(), example))
            },
        })
        .finish();
    tracing::subscriber::with_default(subscriber, say);
    let bytes = text.0.lock().expect("nobody panics").clone();
    let text = String::from_utf8(bytes).expect("text");
    text.lines().map(str::to_owned).collect()
}

/// Ports and seconds make no other kind of line, peers do.
#[test]
fn a_line_that_somebody_can_cause_again_and_again_is_written_a_few_times() {
    let refused = |host: &str, number: u32| {
        let from: std::net::SocketAddr = format!("{host}:{}", 1024 + number).parse().expect("one");
        let error = format!("expired {number} seconds ago");
        tracing::info!(%from, %error, "link closed");
    };
    let lines = written(|| {
        for number in 0..1000 {
            refused("192.0.2.1", number);
            refused("[2001:db8::1]", number);
        }
    });
    let of = |host: &str| lines.iter().filter(|it| it.contains(host)).count();
    assert_eq!((of("192.0.2.1"), of("[2001:db8::1]")), (10, 10));
    assert_eq!(lines.len(), 20);
    assert_eq!(
        lines[0],
        " INFO link closed from=192.0.2.1:1024 error=expired 0 seconds ago"
    );
    let lines = written(|| {
        for number in 0..1000 {
            tracing::warn!(flow = number, "a connection is lost");
            tracing::info!("another place in the code");
        }
    });
    assert_eq!(lines.len(), 20, "{lines:?}");
}
