//! What a server's page cache and disk are held to. Needs root.

mod common;

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use godwit_lab::limits::{Disk, Limits};
use godwit_lab::volume::Image;
use godwit_lab::{Host, Lab, LabOptions};

const DEADLINE: Duration = Duration::from_secs(20);

const MEGABYTE: u64 = 1 << 20;

/// How long it takes to read `count` of the files, a megabyte each, under `limits`.
fn read(lab: &Lab, limits: &Limits, folder: &Path, count: u64) -> Duration {
    let mut cat = limits.command(Path::new("/bin/cat"));
    cat.args((0..count).map(|number| folder.join(number.to_string())));
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$@\" >/dev/null", "read"]);
    shell.arg(cat.get_program()).args(cat.get_args());
    let start = Instant::now();
    let output = lab.a().run(shell, DEADLINE).expect("it runs");
    assert!(output.status.success(), "{}", output.stderr);
    start.elapsed()
}

#[test]
fn a_set_that_fits_in_the_page_cache_is_read_once_and_a_larger_one_each_time() {
    let Some(lab) = common::lab(LabOptions::default()) else {
        return;
    };
    let image = Image::create(&lab.folder().join("image"), (30 * MEGABYTE, 30), |root| {
        for number in 0..30 {
            let bytes = vec![number; 1 << 20];
            fs::write(root.join(number.to_string()), bytes)?;
        }
        Ok(())
    });
    let image = image.expect("an image is made");
    let folder = lab.a().folder().expect("a folder").join("files");
    let volume = image.mount(&folder).expect("it is mounted");
    let disk = Disk {
        bytes: 20 * MEGABYTE,
        reads: 1000,
    };
    let limits = Limits::new(&lab, Host::A, 15 * MEGABYTE).and_then(|limits| {
        limits.slow_down(&volume, disk)?;
        Ok(limits)
    });
    let limits = match limits {
        Ok(limits) => limits,
        Err(reason) => {
            let _ = writeln!(std::io::stderr(), "skipped: {reason:#}");
            return;
        }
    };
    let first = read(&lab, &limits, &folder, 12);
    assert!(first > Duration::from_millis(400), "{first:?}");
    // What is read the second time is what the kernel protects from then on.
    read(&lab, &limits, &folder, 12);
    let again = read(&lab, &limits, &folder, 12);
    assert!(again < Duration::from_millis(200), "{again:?}");
    let cached = limits.cached().expect("the kernel says it");
    assert!((11..=15).contains(&(cached / MEGABYTE)), "{cached}");

    read(&lab, &limits, &folder, 30);
    let again = read(&lab, &limits, &folder, 30);
    assert!(again > Duration::from_millis(700), "{again:?}");
    let cached = limits.cached().expect("the kernel says it");
    assert!(cached / MEGABYTE <= 17, "{cached}");
}
