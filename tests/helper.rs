//! The sleeping helper thread: what became due while it slept is not left until it would have woken by itself.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use planespray::{Fabric, FabricConfig, Fault, JobKey, SendOptions};

const LONG: Duration = Duration::from_secs(30);

fn open(addr: &str, fault: Option<Fault>) -> Fabric {
    Fabric::open(&FabricConfig {
        planes: vec![addr.parse::<IpAddr>().expect("an address")],
        key: Some(JobKey::from_hex("00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff").expect("a key")),
        fault,
        ..FabricConfig::default()
    })
    .expect("a fabric on loopback")
}

/// A sender that lets go of its messages and sleeps: one that is lost on the way is sent again by the helper, when its
/// timer says so (4 ms), and not when the helper would have looked anyway (50 ms).
#[test]
fn a_lost_packet_of_a_caller_that_went_away_is_sent_again_in_time() {
    const MESSAGES: usize = 40;
    let fault = Fault { loss: 0.25, dup: 0.0, reorder: 0.0, seed: 7 };
    let (a, b) = (open("127.0.77.1", None), open("127.0.77.2", Some(fault)));
    let listener = b.listen("127.0.0.1:0".parse().expect("an address")).expect("listens");
    let addr = listener.local_addr();
    let start = Instant::now();
    let (sent, arrived) = std::thread::scope(|s| {
        let receiver = s.spawn(|| {
            let c = listener.accept(LONG).expect("accepts");
            let mut buffer = b.alloc(64).expect("memory");
            let mut arrived = Vec::new();
            for _ in 0..MESSAGES {
                let outcome = c.receive(0, buffer).expect("room").wait(LONG);
                outcome.result.expect("received");
                arrived.push(start.elapsed());
                buffer = outcome.buffer.expect("the buffer comes back");
            }
            c.close(LONG);
            arrived
        });
        let c = a.connect(addr, LONG).expect("connects");
        let mut sent = Vec::new();
        for _ in 0..MESSAGES {
            // Long enough for the helper to have gone to sleep.
            std::thread::sleep(Duration::from_millis(60));
            sent.push(start.elapsed());
            drop(c.send(SendOptions::default(), a.alloc(8).expect("memory"), 8).expect("room"));
        }
        let arrived = receiver.join().expect("no panic");
        c.close(LONG);
        (sent, arrived)
    });
    let late: Vec<Duration> = arrived
        .iter()
        .zip(&sent)
        .map(|(a, s)| a.saturating_sub(*s))
        .filter(|d| *d > Duration::from_millis(3))
        .collect();
    println!("{} of {MESSAGES} were late: {late:?}", late.len());
    assert!(late.len() >= 4, "hardly any message was lost");
    let mut sorted = late;
    sorted.sort_unstable();
    let median = sorted[sorted.len() / 2];
    assert!(median < Duration::from_millis(20), "half of the late ones took over {median:?}");
}
