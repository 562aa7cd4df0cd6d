//! The file system of `run_dir` is full, and agents begin anew: what they have voted for is
//! not forgotten, so a majority of voters is there all the time.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::LabOptions;
use godwit_lab::cluster::{Cluster, ClusterOptions};
use godwit_lab::host::Host;
use godwit_tests::STALL_LIMIT;
use godwit_tests::change::reload;
use godwit_tests::stage::{servers, service_v4, stage, wait_in_sync, wait_protected};
use godwit_tests::traffic::{Load, Traffic};
use nix::mount::{MsFlags, mount, umount};

/// Between two nodes that are told to begin anew.
const APART: Duration = Duration::from_secs(1);

/// A small file system in the place of a folder; it goes with this.
struct Small(PathBuf);

impl Small {
    fn over(folder: &Path) -> Self {
        fs::create_dir_all(folder).expect("it can be made");
        let kind = Some("tmpfs");
        let size = Some("size=512k,mode=755");
        mount(kind, folder, kind, MsFlags::empty(), size).expect("it is mounted");
        Self(folder.to_owned())
    }

    fn fill(&self) {
        let mut rest = File::create(self.0.join("rest")).expect("there is room");
        while rest.write_all(&[b'x'; 4096]).is_ok() {}
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        if let Err(error) = umount(&self.0) {
            eprintln!("{} stays: {error}", self.0.display());
        }
    }
}

/// The folder that holds the node's own.
fn run_dir(cluster: &Cluster<'_>, host: Host) -> PathBuf {
    let file = cluster.config_file(host).expect("it was written");
    let text = fs::read_to_string(file).expect("it can be read");
    let line = text.lines().find_map(|it| it.strip_prefix("run_dir = "));
    line.expect("it is said").trim_matches('"').into()
}

fn restart(cluster: &mut Cluster<'_>, host: Host) {
    cluster.stop_agent(host).expect("the agent ends");
    cluster.start_agent(host).expect("the agent starts");
}

#[test]
fn agents_begin_anew_though_their_disk_is_full() {
    let ways: [fn(&mut Cluster<'_>, Host); 2] = [
        |cluster, host| {
            let output = reload(cluster, host);
            assert!(output.status.success(), "{output:?}");
        },
        restart,
    ];
    for begin_anew in ways {
        let Some(lab) = stage(LabOptions::default()) else {
            return;
        };
        let _servers = servers(&lab);
        let prepared = Cluster::prepare(&lab, ClusterOptions::default());
        let mut cluster = prepared.expect("it is written");
        let disks = Host::SERVERS.map(|host| Small::over(&run_dir(&cluster, host)));
        for host in [Host::A, Host::B, Host::Witness] {
            cluster.start_agent(host).expect("it starts");
        }
        wait_in_sync(&mut cluster, Host::A);
        let echo = Traffic::start(&lab, service_v4(), Load::Echo);
        wait_protected(&cluster, Host::A, echo.local());
        disks.iter().for_each(Small::fill);
        let since = Instant::now();
        for host in Host::SERVERS {
            begin_anew(&mut cluster, host);
            thread::sleep(APART);
            echo.goes_on();
        }
        wait_in_sync(&mut cluster, Host::A);
        echo.finish(since, STALL_LIMIT);
        drop(cluster);
    }
}
