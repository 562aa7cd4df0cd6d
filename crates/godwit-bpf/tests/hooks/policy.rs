//! Programs of the user's own, as users make them: by the compiler and the header that
//! docs/policies.md names.

use std::fs;
use std::path::Path;
use std::process::Command;

use godwit_bpf::{Hook, Mate, Moves, OpenError, Policy, PolicyError, Steering};
use godwit_lab::host::{Host, Network};
use godwit_wire::TcpFlags;

use crate::bench::{
    Bench, IRS, NEXT, NODES, REDIRECT, SHARE, on_bench_of_with, on_bench_with, to_service,
};
use crate::transfer::place;

/// What every program begins with, so that these need no package of headers.
const HEAD: &str = r#"
#include <linux/bpf.h>
#define SEC(name) __attribute__((section(name), used))
#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
#define __uint(name, val) int (*name)[val]
#define __type(name, val) typeof(val) *name
static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_tail_call)(void *ctx, void *map, __u32 index) = (void *)12;
#include "godwit_policy.h"
char LICENSE[] SEC("license") = "GPL";
"#;

fn compile(folder: &Path, name: &str, text: &str) -> Policy {
    let (source, object) = (folder.join(name), folder.join(format!("{name}.o")));
    fs::write(&source, text).expect("there is room");
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
    let arch = format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let mut clang = Command::new("clang-14");
    clang.args([
        "-O2", "-g", "-target", "bpf", &arch, "-I", include, "-xc", "-c",
    ]);
    let done = clang.arg(&source).arg("-o").arg(&object).status();
    assert!(done.expect("clang-14 is there").success(), "{name}");
    Policy::new(name, fs::read(object).expect("it was made"))
}

fn policy(body: &str) -> String {
    format!("{HEAD}GW_POLICY(ctx, head)\n{{\n{body}\n}}\n")
}

fn folder(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("godwit-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("there is room");
    folder
}

fn by_program(bench: &Bench) {
    place(bench, Mate::Open(Host::B.mac(Network::Data)));
    bench.own(Moves::Home);
    let steering = Steering {
        program: Some(1),
        ..Steering::default()
    };
    bench
        .datapath
        .requests
        .steering
        .set(SHARE, steering)
        .expect("there is room");
}

fn syn(port: u16) -> Vec<u8> {
    to_service(port, false, IRS, 0, TcpFlags::SYN, b"")
}

/// What it says is done; what it can't mean is not, and counted.
#[test]
fn an_answer_is_a_server_that_is_there() {
    let folder = folder("answers");
    let text = policy("return (int)(ctx->client_port >> 8) - 100;");
    let answers = [compile(&folder, "answers", &text)];
    fs::remove_dir_all(&folder).expect("it is there");
    on_bench_with(&answers, |bench| {
        by_program(bench);
        // The port's lower byte is the upper one on a little-endian machine.
        let expect = |answer: u16, verdict, reason| {
            bench.expect(Hook::Tap, "SYN", &syn(answer + 100), verdict, reason);
        };
        expect(1, REDIRECT, "passed_on");
        expect(0, NEXT, "syn");
        expect(2, NEXT, "policy_refused");
        expect(63, NEXT, "policy_refused");
        expect(64, NEXT, "policy_refused");
        let here = u16::MAX - 1;
        bench.expect(Hook::Tap, "here", &syn(here.wrapping_add(100)), NEXT, "syn");
        let closed = Mate::Closed(Host::B.mac(Network::Data));
        let table = &bench.datapath.requests.placing;
        table
            .set_mate(SHARE, NODES[1], closed)
            .expect("there is room");
        bench.expect(
            Hook::Tap,
            "closed",
            &syn(0x0100 + 101),
            NEXT,
            "policy_refused",
        );
    });
}

/// It sees what it is told that it sees.
#[test]
fn a_program_knows_what_it_is_asked_about() {
    let folder = folder("context");
    let text = policy(
        "if (ctx->event != GW_POLICY_REQUEST || ctx->self != 0 || ctx->open != 3 ||\n\
         ctx->ruled != 2 || ctx->head_len != 37 || ctx->path_at != 4 || ctx->path_end != 8 ||\n\
         ctx->load[1] != GW_POLICY_NO_LOAD || head->bytes[0] != 'G' || head->bytes[36] != '\\n' ||\n\
         ctx->service_port != __builtin_bswap16(80))\n\
         return GW_POLICY_HERE;\n\
         return 1;",
    );
    let context = [compile(&folder, "context", &text)];
    fs::remove_dir_all(&folder).expect("it is there");
    on_bench_with(&context, |bench| {
        by_program(bench);
        bench.connect(7, false);
        let data = TcpFlags::ACK.with(TcpFlags::PSH);
        let request = b"GET /b/x?y=1 HTTP/1.1\r\nHost: abcd\r\n\r\n";
        let frame = to_service(
            7,
            false,
            IRS.wrapping_add(1),
            crate::bench::ISS + 1,
            data,
            request,
        );
        bench.expect(Hook::Tap, "request", &frame, REDIRECT, "asked");
        assert_eq!(request.len(), 37);
    });
}

/// One that is not there, or does not come back, costs its answer.
#[test]
fn who_does_not_answer_is_done_without() {
    let folder = folder("lost");
    let silent = format!(
        "{HEAD}SEC(\"tcx/ingress\") int policy(struct __sk_buff *skb)\n\
         {{\n__u32 zero = 0;\n(void)bpf_map_lookup_elem(&gw_policy_calls, &zero);\n\
         bpf_tail_call(skb, &gw_policy_programs, 0);\nreturn 2;\n}}\n"
    );
    let silent = [compile(&folder, "silent", &silent)];
    fs::remove_dir_all(&folder).expect("it is there");
    on_bench_with(&[], |bench| {
        by_program(bench);
        bench.expect(Hook::Tap, "nobody", &syn(7), NEXT, "policy_lost");
    });
    on_bench_with(&silent, |bench| {
        by_program(bench);
        bench.expect(Hook::Tap, "no answer", &syn(7), NEXT, "policy_lost");
    });
}

/// A request as long as a frame can be: not a byte of an earlier one is shown.
#[test]
fn a_program_sees_nothing_of_others() {
    let folder = folder("others");
    // Past the head, of which the last byte is not shown.
    let text = policy("return head->bytes[1500] == 'y' ? 1 : GW_POLICY_HERE;");
    let others = [compile(&folder, "others", &text)];
    fs::remove_dir_all(&folder).expect("it is there");
    on_bench_with(&others, |bench| {
        by_program(bench);
        let data = TcpFlags::ACK.with(TcpFlags::PSH);
        for (port, filling) in [(7, "x"), (8, "y")] {
            bench.connect(port, false);
            let head = "POST /b/x HTTP/1.1\r\nHost: s\r\nContent-Length: 2200\r\n\r\n";
            let request = format!("{head}{}", filling.repeat(2200));
            let first = IRS.wrapping_add(1);
            let frame = to_service(
                port,
                false,
                first,
                crate::bench::ISS + 1,
                data,
                request.as_bytes(),
            );
            let (_, reasons) = bench.pass(Hook::Tap, &frame);
            let stays = reasons.iter().any(|it| it == "kept_here");
            assert_eq!(stays, filling == "x", "{filling}: {reasons:?}");
        }
    });
}

/// Each is one sentence, and the data path that is there stays as it is.
#[test]
fn what_is_no_policy_is_refused() {
    let folder = folder("refused");
    let wild = policy("return *(volatile int *)(long)ctx->path;");
    let other = format!("{HEAD}SEC(\"xdp\") int policy(struct xdp_md *x) {{ return 2; }}\n");
    let cases = [
        (Policy::new("text", b"no object".to_vec()), "Object"),
        (compile(&folder, "wild", &wild), "Refused"),
        (compile(&folder, "other", &other), "Program"),
    ];
    let good = compile(&folder, "good", &policy("return 1;"));
    fs::remove_dir_all(&folder).expect("it is there");
    let by_class: Vec<_> = Policy::built_in("by_class").into_iter().collect();
    on_bench_of_with(&by_class, |bench, _, pins| {
        by_program(bench);
        for (policy, kind) in cases {
            let error = Bench::try_open(pins, &[good.clone(), policy]).expect_err(kind);
            let OpenError::Policy(error) = error else {
                panic!("{error}");
            };
            let found = match error {
                PolicyError::Object { .. } => "Object",
                PolicyError::Program { .. } => "Program",
                PolicyError::Refused { .. } => "Refused",
                PolicyError::Map(_) | _ => "another",
            };
            assert_eq!(found, kind);
            // What the bench has is still asked: by class, to which a SYN is nothing.
            let (verdict, reasons) = bench.pass(Hook::Tap, &syn(9));
            assert_eq!(verdict, NEXT, "{reasons:?}");
            assert!(!reasons.iter().any(|it| it == "policy_lost"), "{reasons:?}");
        }
    });
}
