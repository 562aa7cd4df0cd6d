//! Unmodified nginx and curl over a crash of the server, both address families.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use godwit_lab::apps::content::{Checker, Content};
use godwit_lab::apps::curl::{self, Patience, Transfer};
use godwit_lab::apps::nginx::Nginx;
use godwit_lab::host::Host;
use godwit_lab::links::{Crash, Shape};
use godwit_lab::{Lab, LabOptions};
use godwit_tests::stream::expect_no_stall;
use godwit_tests::{DEADLINE, Site, lab, until};
use godwit_wire::TcpFlags;

/// curl gives up after ten seconds without a byte.
const PATIENCE: Patience = Patience(10);

const FILE: Content = Content {
    seed: 0x4774,
    length: 12_000_000,
};

/// Requests of the keep-alive test, and the bytes of each reply.
const REQUESTS: u64 = 100;
const REPLY: u64 = 100_000;

/// Downloads over IPv4 and IPv6 are byte exact although their server crashed.
#[test]
fn downloads_outlive_their_server() -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let root = folder(&lab)?;
    FILE.write_to(&root.join("file"))?;
    let _servers = servers(&lab, &root)?;
    let site = Site::start(&lab, 80)?;
    let mut transfers = Vec::new();
    for address in site.addresses() {
        let url = format!("http://{address}/file");
        transfers.push(curl::download(lab.client(), &url, FILE, PATIENCE)?);
    }
    let crash = crash_at(&site, &transfers, FILE.length / 3)?;
    expect_exact(transfers, crash.from)?;
    site.verify().map(drop)
}

/// Uploads by PUT end with nginx's 201, and the survivor has every byte.
#[test]
fn uploads_outlive_their_server() -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let root = folder(&lab)?;
    let [_a, b] = servers(&lab, &root)?;
    let site = Site::start(&lab, 80)?;
    let mut transfers = Vec::new();
    for (number, address) in site.addresses().iter().enumerate() {
        let url = format!("http://{address}/upload/{number}");
        transfers.push(curl::upload(lab.client(), &url, FILE, PATIENCE)?);
    }
    let crash = crash_at(&site, &transfers, FILE.length / 3)?;
    expect_exact(transfers, crash.from)?;
    expect_uploaded(&b)?;
    site.verify().map(drop)
}

/// Uploads by PUT go on, unprotected, when the standby's nginx is killed; the owner
/// has every byte.
#[test]
fn uploads_do_not_notice_that_the_standbys_nginx_is_killed() -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let root = folder(&lab)?;
    let [a, mut b] = servers(&lab, &root)?;
    let site = Site::start(&lab, 80)?;
    let mut transfers = Vec::new();
    for (number, address) in site.addresses().iter().enumerate() {
        let url = format!("http://{address}/upload/{number}");
        transfers.push(curl::upload(lab.client(), &url, FILE, PATIENCE)?);
    }
    half_way(&site, &transfers, FILE.length / 3)?;
    let since = Instant::now();
    b.process.kill()?;
    until("the uploads to be unprotected", || {
        let flows = site.flows(Host::A)?;
        Ok(flows.len() == 2 && flows.iter().all(|flow| !flow.protected))
    })?;
    expect_exact(transfers, since)?;
    expect_uploaded(&a)?;
    site.verify().map(drop)
}

/// A hundred keep-alive requests stay on their one connection over a crash.
#[test]
fn a_hundred_requests_share_a_connection_that_outlives_its_server() -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let root = folder(&lab)?;
    let all = Content {
        length: REQUESTS * REPLY,
        ..FILE
    };
    let mut part = vec![0; usize::try_from(REPLY)?];
    for number in 0..REQUESTS {
        let path = root.join(number.to_string());
        fs::write(path, all.part(number * REPLY, &mut part)).context("writing a file")?;
    }
    let _servers = servers(&lab, &root)?;
    let site = Site::start(&lab, 80)?;
    let mut transfers = Vec::new();
    for address in site.addresses() {
        let urls = (0..REQUESTS).map(|number| format!("http://{address}/{number}"));
        let urls = urls.collect::<Vec<_>>();
        transfers.push(curl::download_all(lab.client(), &urls, all, PATIENCE)?);
    }
    let crash = crash_at(&site, &transfers, all.length / 2)?;
    expect_exact(transfers, crash.from)?;
    let trace = site.verify()?;
    let opened = trace.segments().filter(|s| s.flags == TcpFlags::SYN);
    ensure!(opened.count() == 2, "curl opened another connection");
    Ok(())
}

fn folder(lab: &Lab) -> Result<PathBuf> {
    let root = lab.folder().join("www");
    fs::create_dir(&root).context("creating the folder of the web server")?;
    // Slow enough that a crash half-way is half-way.
    lab.shape(Host::Client, Some(Shape::mbit(100)))?;
    Ok(root)
}

fn servers(lab: &Lab, root: &Path) -> Result<[Nginx; 2]> {
    Ok([
        Nginx::start(lab.a(), root, 80)?,
        Nginx::start(lab.b(), root, 80)?,
    ])
}

/// Waits until every transfer is protected and has made `bytes` of progress.
fn half_way(site: &Site<'_>, transfers: &[Transfer], bytes: u64) -> Result<()> {
    let reached = |bytes| transfers.iter().all(|t| t.meter.bytes() >= bytes);
    until("the transfers to begin", || Ok(reached(1)))?;
    site.wait_protected(transfers.len())?;
    until("the transfers to be half-way", || Ok(reached(bytes)))
}

/// Lets the owner crash then.
fn crash_at(site: &Site<'_>, transfers: &[Transfer], bytes: u64) -> Result<Crash> {
    half_way(site, transfers, bytes)?;
    site.crash_owner()
}

/// A server has both uploads whole.
fn expect_uploaded(server: &Nginx) -> Result<()> {
    for number in ["0", "1"] {
        let path = server.uploaded(number);
        let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let mut checker = Checker::new(FILE);
        checker.feed(&bytes);
        let verdict = checker.finish();
        ensure!(verdict.exact, "upload {number}: {verdict:?}");
    }
    Ok(())
}

/// Every curl is satisfied, every byte is right, and nobody waited long.
fn expect_exact(transfers: Vec<Transfer>, since: Instant) -> Result<()> {
    thread::scope(|scope| {
        let ends = transfers.into_iter().map(|transfer| {
            scope.spawn(move || {
                let meter = transfer.meter.clone();
                let report = transfer.finish(DEADLINE)?;
                ensure!(report.status.success(), "curl: {report:?}");
                ensure!(report.verdict.exact, "{report:?}");
                expect_no_stall(&meter, since)
            })
        });
        let ends = ends.collect::<Vec<_>>();
        for end in ends {
            end.join()
                .map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        Ok(())
    })
}
