//! What options mean, and the one line that refuses them.

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Wrapper {
    #[command(flatten)]
    args: Args,
}

fn resolve(line: &str) -> Result<Resolved, String> {
    let words = std::iter::once("bench").chain(line.split_whitespace());
    Wrapper::try_parse_from(words).map_err(|e| e.to_string())?.args.resolved()
}

#[test]
fn defaults() {
    let r = resolve("").unwrap();
    assert_eq!(r.measure.op, Operation::Write);
    assert_eq!(r.measure.sizes, [65536]);
    assert_eq!(r.measure.extent, Extent::Duration(Duration::from_secs(2)));
    assert!(r.measure.verify && r.fabric.busy && r.fabric.grant_always);
    assert_eq!(r.fabric.planes, ["127.0.0.1".parse::<IpAddr>().unwrap(), "127.0.1.1".parse().unwrap()]);
    assert_eq!(r.role, Role::Both { server_planes: vec!["127.0.0.2".parse().unwrap(), "127.0.1.2".parse().unwrap()] });
    assert_eq!(r.measure.slots(65536), 128);
    assert_eq!(r.measure.slots(1 << 20), 8);
    assert_eq!(r.measure.slots(8 << 20), 4);
}

#[test]
fn perftest_names() {
    let r = resolve("127.0.0.1 -s 1M -n 1000 -q 8 -p 19000 -m 1024 --tclass 104 --report_gbits -t 16").unwrap();
    assert_eq!(r.role, Role::Client { server: "127.0.0.1:19000".parse().unwrap() });
    assert_eq!(r.measure.sizes, [1 << 20]);
    assert_eq!(r.measure.extent, Extent::Iterations(1000));
    assert_eq!((r.fabric.lanes, r.fabric.mtu), (8, 1024));
    assert_eq!(r.fabric.dscp.map(Dscp::get), Some(26));
    assert_eq!(r.measure.slots(1 << 20), 16);
    let r = resolve("-a --lat").unwrap();
    assert_eq!(r.measure.sizes.len(), 23);
    assert_eq!(r.measure.class, Class::Latency);
    let r = resolve("--server -p 19000").unwrap();
    assert_eq!((r.role, r.fabric.bootstrap_port), (Role::Server, 19000));
}

#[test]
fn bind_splits_between_the_ends() {
    let r = resolve("--bind 127.0.0.5,127.0.0.6,127.0.0.7,127.0.0.8").unwrap();
    assert_eq!(r.fabric.planes, ["127.0.0.5".parse::<IpAddr>().unwrap(), "127.0.0.6".parse().unwrap()]);
    assert!(matches!(r.role, Role::Both { server_planes } if server_planes[1].to_string() == "127.0.0.8"));
}

#[test]
fn faults() {
    let fault = resolve("--fault loss=1%,dup=0.5%,reorder=2%,seed=7").unwrap().fabric.fault.unwrap();
    assert_eq!((fault.loss, fault.dup, fault.reorder, fault.seed), (0.01, 0.005, 0.02, 7));
}

#[test]
fn contradictions_are_named() {
    for (line, says) in [
        ("-s 64K -a", "-s and -a contradict"),
        ("-n 5 -D 5", "-n and -D contradict"),
        ("--busy --wait", "--busy and --wait"),
        ("--server 127.0.0.1", "a server waits"),
        ("--server -s 8", "-s is the client's to say"),
        ("--key-file k --insecure", "--key-file and --insecure"),
        ("--bind 127.0.0.1 -d lo", "--bind and -d"),
        ("--no-verify --inject flip", "--no-verify and --inject"),
        ("-m 1500", "no RoCE MTU"),
        ("--tclass 1", "ECN bits"),
        ("-s 2G", "out of range"),
        ("-s 0", "out of range"),
        ("-s 1G -t 16", "use -t 2 or less"),
        ("-s 12Q", "invalid value '12Q'"),
        ("-D 0", "invalid value '0'"),
        ("--fault loss=200%", "200%"),
        ("--fault lost=1%", "lost"),
        ("--bind 127.0.0.1", "as many for the server"),
        ("--bind 127.0.0.1,127.0.0.1", "twice"),
        ("--bind 192.0.2.1,192.0.2.2", "192.0.2.1 is not an address of this machine"),
        ("--bind 127.0.0.1,127.0.0.2 --planes 2", "contradicts 1 addresses"),
        ("--server -d nosuch0", "no interface nosuch0"),
        ("192.0.2.1", "--bind ADDR"),
        ("-d lo", "need a host"),
        ("--engine verbs", "need a host"),
        ("--server --bind 127.0.0.1 --engine verbs", "--bind and --engine verbs"),
        ("--server -d lo:x", "port \"x\""),
        ("--planes 9", "9 is not in 1..=8"),
        ("--nonsense", "--nonsense"),
    ] {
        let got = resolve(line).expect_err(line);
        assert!(got.contains(says), "{line}: {got}");
    }
}
