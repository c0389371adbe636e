//! A receiver that closes and leaves as soon as it has the message, while packets are lost: its sender still learns that the
//! message was delivered.

use std::time::Duration;

use planespray::{Fabric, FabricConfig, Fault, SendOptions};

const LONG: Duration = Duration::from_secs(20);
/// Sizes that go with the first packet, eagerly, and by grant.
const SIZES: [usize; 3] = [8, 3000, 40_000];
const ROUNDS: usize = 30;

fn open(addr: &str, seed: u64) -> Fabric {
    let fault = Fault { loss: 0.15, dup: 0., reorder: 0., seed };
    let config = FabricConfig {
        planes: vec![addr.parse().expect("an address")],
        insecure: true,
        fault: Some(fault),
        ..FabricConfig::default()
    };
    Fabric::open(&config).expect("a fabric on loopback")
}

#[test]
fn a_receiver_that_leaves_at_once_leaves_no_send_undecided() {
    for round in 0..ROUNDS {
        let len = SIZES[round % SIZES.len()];
        let seed = 2 * round as u64;
        let b = open("127.0.93.2", seed);
        let listener = b.listen("127.0.0.1:0".parse().expect("an address")).expect("listens");
        let addr = listener.local_addr();
        std::thread::scope(|s| {
            s.spawn(move || {
                let connection = listener.accept(LONG).expect("accepts");
                let buffer = b.alloc(len).expect("memory");
                let got = connection.receive(0, buffer).expect("room").wait(LONG);
                assert_eq!(got.result.expect("received"), len, "round {round}");
                connection.close(LONG);
            });
            let a = open("127.0.93.1", seed + 1);
            let connection = a.connect(addr, LONG).expect("connects");
            let message = a.alloc(len).expect("memory");
            let sent = connection.send(SendOptions::default(), message, len).expect("room").wait(LONG);
            assert_eq!(sent.result.expect("delivered"), len, "round {round}, {len} bytes");
            // The receiver may have left without waiting for our goodbye, which nothing depends on.
            assert_eq!(connection.close(LONG).undelivered, 0, "round {round}, {len} bytes");
        });
    }
}
