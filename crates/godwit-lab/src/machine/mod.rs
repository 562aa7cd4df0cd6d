//! A node of a lab with a kernel of its own: a virtual machine in its place.
//!
//! Namespaces share the host's kernel: its version, its clock, and its view of
//! who died. A machine (QEMU, software emulation, a stock Debian kernel) has none
//! of these in common with the others. Its death is one SIGKILL of QEMU, after
//! which neither a socket nor a timer of it is left; paused, it stands still with
//! its clock, as under a hypervisor that stops it.
//!
//! A client or a witness needs no BPF, and may be User-mode Linux: a kernel that is
//! a process of this one, boots in a second and runs at its speed.

mod image;
mod system;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde::de::DeserializeOwned;

pub use image::KERNEL_VARIABLE;

use crate::cluster::{Cluster, Flows, Status};
use crate::host::{Host, Network};
use crate::lab::{Lab, Node, which};
use crate::process::{Pipes, Process};
use image::{Kernel, Root};

const EMULATOR: &str = "qemu-system-x86_64";

/// What the first process of a machine needs of busybox.
const COMMANDS: [&str; 9] = [
    "cat", "echo", "insmod", "ip", "mount", "nc", "sh", "sleep", "tail",
];

/// Files of a node with an agent, and its configuration.
const FILES: [&str; 4] = ["godwit.toml", "ca.pem", "node.pem", "node.key"];

/// Where to look for an agent's control socket.
const SOCKETS: &str = "/tmp/*/*/run/*/control.sock";

/// Port of the machine's shell, which clients may ask.
const SHELL: u16 = 7;

/// What User-mode Linux needs for a client or a witness, in bytes.
const USER_MODE_MEMORY: u32 = 192 << 20;

/// How long a command inside may take; software emulation is slow.
const COMMAND_DEADLINE: Duration = Duration::from_secs(20);

/// How long a boot may take; most of it is the kernel verifying BPF programs.
const BOOT_DEADLINE: Duration = Duration::from_secs(90);

/// How long a machine that may still be booting has for an answer.
const ATTEMPT: Duration = Duration::from_secs(1);

/// What a machine prints when its agent has ended; the exit code follows.
const AGENT_ENDED: &str = "the agent ended: ";

/// What follows a command's output, before its exit status.
const STATUS_MARK: &str = "\u{1}status ";

/// A running machine; dropped, it loses its power.
#[derive(Debug)]
pub struct Machine {
    host: Host,
    emulator: Process,
    monitor: PathBuf,
    socket: String,
    client: Node,
}

impl Machine {
    /// Says why there can be no such machine here, if so.
    pub fn unavailable() -> Option<String> {
        for (program, package) in [
            (EMULATOR, "qemu-system-x86"),
            ("busybox", "busybox-static"),
            ("cpio", "cpio"),
        ] {
            if which(program).is_none() {
                return Some(format!(
                    "`{program}` is not installed (Debian package {package})"
                ));
            }
        }
        Kernel::find().is_none().then(|| {
            format!("no kernel to boot; run packaging/own-kernel.sh or set {KERNEL_VARIABLE}")
        })
    }

    /// Boots a machine in the place of `host`, whose namespace loses its links,
    /// with the files that `cluster` has for it: the lab's server at port 80 and
    /// an agent, or a witness.
    ///
    /// # Errors
    /// Fails if the lab has no control network, or if the machine does not answer
    /// within [`BOOT_DEADLINE`]; the message is its console.
    pub fn boot(lab: &Lab, host: Host, cluster: &Cluster<'_>) -> Result<Self> {
        let kernel = Kernel::find().context("no kernel to boot")?;
        Self::switch_on(lab, host, cluster, &kernel)?.wait_up(SOCKETS, BOOT_DEADLINE)
    }

    /// Boots a machine like [`Self::boot`] with a kernel that is too old, and waits
    /// for its agent to end.
    ///
    /// # Errors
    /// Fails if there is no such kernel, or if the agent does not end within
    /// [`BOOT_DEADLINE`]; the message is its console.
    pub fn boot_old(lab: &Lab, host: Host, cluster: &Cluster<'_>) -> Result<Self> {
        let kernel = Kernel::find().context("no kernel to boot")?.old();
        let machine = Self::switch_on(lab, host, cluster, &kernel)?;
        let end = Instant::now() + BOOT_DEADLINE;
        let ended = |machine: &Self| machine.console().contains(AGENT_ENDED);
        while !ended(&machine) || machine.shell_within(":", ATTEMPT).is_err() {
            let late = Instant::now() > end;
            ensure!(!late, "its agent does not end: {}", machine.console());
            thread::sleep(Duration::from_millis(50));
        }
        Ok(machine)
    }

    /// Says why there can be no User-mode Linux here, if so.
    pub fn user_mode_unavailable() -> Option<String> {
        let kernel = Kernel::find().map(|kernel| kernel.user_mode());
        let is_there = kernel.is_some_and(|kernel| kernel.image().is_file());
        let missing = || "no User-mode Linux; run packaging/own-kernel.sh".to_owned();
        Self::unavailable().or_else(|| (!is_there).then(missing))
    }

    /// Boots User-mode Linux in the place of `host`: a witness like [`Self::boot`],
    /// or a client that does what its shell is told. The shell of a client answers
    /// to [`Host::Attacker`], which the lab must have then.
    ///
    /// # Errors
    /// Fails if there is no such kernel, if `host` is a server, or if the machine
    /// does not answer within [`BOOT_DEADLINE`]; the message is its console.
    pub fn boot_user_mode(lab: &Lab, host: Host, cluster: &Cluster<'_>) -> Result<Self> {
        let kernel = Kernel::find().context("no kernel to boot")?.user_mode();
        let machine = Self::switch_on(lab, host, cluster, &kernel)?;
        if host == Host::Witness {
            return machine.wait_up(SOCKETS, BOOT_DEADLINE);
        }
        let end = Instant::now() + BOOT_DEADLINE;
        while machine.shell_within(":", ATTEMPT).is_err() {
            let is_late = Instant::now() > end;
            ensure!(!is_late, "{host} does not come up: {}", machine.console());
            thread::sleep(Duration::from_millis(50));
        }
        Ok(machine)
    }

    fn switch_on(lab: &Lab, host: Host, cluster: &Cluster<'_>, kernel: &Kernel) -> Result<Self> {
        let is_server = Host::SERVERS.contains(&host);
        ensure!(
            is_server != kernel.is_user_mode() || host == Host::Witness,
            "{host} can't have that kernel"
        );
        let folder = folder_of(lab, host)?;
        let root = Root::new(kernel, &folder, &COMMANDS)?;
        let config = cluster.config_file(host)?;
        let home = config.parent().context("a file is in a folder")?;
        for name in FILES.iter().filter(|_| host.has_control()) {
            let file = home.join(name);
            root.copy(&file, &file)?;
        }
        let role = match host {
            Host::Witness => "witness",
            Host::Director | Host::Reserve => "director",
            Host::A | Host::B | Host::C => "agent",
            Host::Client | Host::Attacker => "client",
        };
        let line = kernel_line(host, &format!("{role} GW_CONFIG={}", config.display()));
        Self::power_on(lab, host, kernel, &root.pack(None)?, &line)
    }

    /// Starts the machine in the place of `host`; `line` is its kernel's command line.
    fn power_on(lab: &Lab, host: Host, kernel: &Kernel, initrd: &Path, line: &str) -> Result<Self> {
        take_place(lab, host)?;
        let folder = folder_of(lab, host)?;
        let monitor = folder.join("monitor");
        let command = if kernel.is_user_mode() {
            run_user_mode(lab, kernel, initrd, host, line)
        } else {
            emulate(kernel, initrd, &monitor, host, line)
        };
        // It stands at the switch, as its ports do.
        let emulator = Process::start(
            &lab.switch,
            "machine",
            command,
            folder.join("console.log"),
            Pipes::None,
        )?;
        Ok(Self {
            host,
            emulator,
            monitor,
            socket: String::new(),
            client: lab.node(asker(host)).clone(),
        })
    }

    /// Its kernel's release, as uname(1) has it.
    ///
    /// # Errors
    /// Fails if the machine does not answer.
    pub fn release(&self) -> Result<String> {
        let text = self.shell("cat /proc/sys/kernel/osrelease")?;
        Ok(text.trim().to_owned())
    }

    /// Its power fails: not one more instruction, and its links lose their carrier.
    /// Returns a moment just before.
    ///
    /// # Errors
    /// Fails if the emulator does not end.
    pub fn die(&mut self) -> Result<Instant> {
        let since = Instant::now();
        self.emulator.kill()?;
        Ok(since)
    }

    /// Its process, for a power switch to end.
    pub fn pid(&self) -> nix::unistd::Pid {
        self.emulator.pid()
    }

    /// Stops the machine and its clock; its links stay up.
    ///
    /// # Errors
    /// Fails if the emulator does not answer.
    pub fn pause(&self) -> Result<()> {
        self.monitor("stop")
    }

    /// Lets a paused machine go on, for which no time has passed.
    ///
    /// # Errors
    /// Fails if the emulator does not answer.
    pub fn resume(&self) -> Result<()> {
        self.monitor("cont")
    }

    /// What its agent says of itself.
    ///
    /// # Errors
    /// Fails if it does not answer.
    pub fn status(&self) -> Result<Status> {
        self.ask("status")
    }

    /// Its flows.
    ///
    /// # Errors
    /// Fails if its agent does not answer.
    pub fn flows(&self) -> Result<Flows> {
        self.ask("flows")
    }

    /// Runs a line of shell inside; its output, standard error included.
    ///
    /// # Errors
    /// Fails if the machine does not answer or the line's status is not 0.
    pub fn shell(&self, line: &str) -> Result<String> {
        self.shell_within(line, COMMAND_DEADLINE)
    }

    fn shell_within(&self, line: &str, limit: Duration) -> Result<String> {
        let address = SocketAddr::from((self.host.v4(), SHELL));
        let script = format!("{{ {line}\n}} 2>&1; echo '{STATUS_MARK}'$?\n");
        let said = self.client.enter(|| -> Result<String> {
            let mut stream = TcpStream::connect_timeout(&address, limit)
                .with_context(|| format!("reaching the shell of {}", self.host))?;
            stream
                .set_read_timeout(Some(limit))
                .context("setting a deadline")?;
            stream.write_all(script.as_bytes()).context("asking")?;
            let mut said = String::new();
            // The listener keeps the connection open, so its end is in the text.
            for line in BufReader::new(stream).lines() {
                said.push_str(&line.context("reading an answer")?);
                said.push('\n');
                if said.contains(STATUS_MARK) {
                    break;
                }
            }
            Ok(said)
        })??;
        let (output, status) = said
            .rsplit_once(STATUS_MARK)
            .with_context(|| format!("`{line}` on {} did not end: {said}", self.host))?;
        ensure!(status.trim() == "0", "`{line}` on {}: {output}", self.host);
        Ok(output.to_owned())
    }

    /// What it has printed.
    pub fn console(&self) -> String {
        self.emulator.log()
    }

    fn ask<T: DeserializeOwned>(&self, what: &str) -> Result<T> {
        let text = self.shell(&format!("godwit {what} --json --socket {}", self.socket))?;
        serde_json::from_str(&text).with_context(|| format!("reading `godwit {what}`: {text}"))
    }

    /// Waits until its shell answers and its agent has a control socket, at a path
    /// that the pattern `sockets` names.
    fn wait_up(mut self, sockets: &str, limit: Duration) -> Result<Self> {
        let end = Instant::now() + limit;
        loop {
            let found = self.shell_within(&format!("echo {sockets}"), ATTEMPT);
            match found {
                Ok(found) if !found.contains('*') => {
                    found.trim().clone_into(&mut self.socket);
                    return Ok(self);
                }
                last if !self.emulator.is_running() || Instant::now() > end => {
                    bail!(
                        "{} does not come up ({last:?}): {}",
                        self.host,
                        self.console()
                    );
                }
                // Not yet up is the normal case here.
                Ok(_) | Err(_) => thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// One command of the QEMU Machine Protocol.
    fn monitor(&self, command: &str) -> Result<()> {
        let mut stream = UnixStream::connect(&self.monitor).context("reaching the emulator")?;
        stream
            .set_read_timeout(Some(COMMAND_DEADLINE))
            .context("setting a deadline")?;
        for command in ["qmp_capabilities", command] {
            let line = serde_json::json!({ "execute": command, "id": command });
            writeln!(stream, "{line}").context("asking the emulator")?;
            await_return(&mut stream, command)?;
        }
        Ok(())
    }
}

/// Reads until `command` has returned; greeting and events come in between.
fn await_return(stream: &mut UnixStream, command: &str) -> Result<()> {
    let mut line = Vec::new();
    loop {
        let mut byte = [0];
        stream
            .read_exact(&mut byte)
            .context("hearing the emulator")?;
        if byte != *b"\n" {
            line.push(byte[0]);
            continue;
        }
        let answer: serde_json::Value =
            serde_json::from_slice(&line).context("reading the emulator's answer")?;
        line.clear();
        if answer["id"] == command {
            ensure!(answer["error"].is_null(), "`{command}`: {answer}");
            return Ok(());
        }
    }
}

/// Gives the switch ports of `host` to a machine.
fn take_place(lab: &Lab, host: Host) -> Result<()> {
    let mut lines = Vec::new();
    for &network in lab.networks_of(host) {
        let port = network.port(host);
        lines.push(format!("link del {port}"));
        lines.push(format!("tuntap add {port} mode tap vnet_hdr"));
        lines.push(format!("link set {port} master {} up", network.bridge()));
    }
    lab.switch.ip(&lines)
}

/// Who talks to the shell of a machine.
const fn asker(host: Host) -> Host {
    match host {
        Host::Client => Host::Attacker,
        Host::A
        | Host::B
        | Host::C
        | Host::Witness
        | Host::Director
        | Host::Reserve
        | Host::Attacker => Host::Client,
    }
}

/// Where the emulator of `host` has its files.
fn folder_of(lab: &Lab, host: Host) -> Result<PathBuf> {
    let folder = lab.node(host).folder()?.join("machine");
    fs::create_dir_all(&folder).context("creating a machine's folder")?;
    Ok(folder)
}

/// What the first process is to know: the kernel hands on what it does not know.
fn kernel_line(host: Host, role: &str) -> String {
    let control = if host.has_control() {
        format!(" GW_CONTROL_V4={}", host.control_v4())
    } else {
        String::new()
    };
    format!(
        "quiet panic=-1 GW_ROLE={role} GW_DATA_V4={} GW_DATA_V6={}{control}",
        host.v4(),
        host.v6(),
    )
}

/// A kernel that is a process, `vector_user.c` has the words for its links.
fn run_user_mode(lab: &Lab, kernel: &Kernel, initrd: &Path, host: Host, line: &str) -> Command {
    let mut command = Command::new(kernel.image());
    command
        .arg(format!("mem={USER_MODE_MEMORY}"))
        .arg(format!("initrd={}", initrd.display()))
        .args(["rdinit=/init", "con=null", "con0=null,fd:1", "ssl=null"])
        // Its memory is a file, which must be in one that may be executed.
        .env("TMPDIR", lab.folder());
    for (number, network) in lab.networks_of(host).iter().enumerate() {
        command.arg(format!(
            "vec{number}:transport=tap,ifname={},mac={},gro=1",
            network.port(host),
            host.mac(*network)
        ));
    }
    command.args(line.split(' '));
    command
}

fn emulate(kernel: &Kernel, initrd: &Path, monitor: &Path, host: Host, line: &str) -> Command {
    let mut command = Command::new(EMULATOR);
    // QEMU 7.2 emulates cmpxchg16b wrongly: under load the kernel's allocator
    // meets a double fault. Without that instruction it takes another way.
    command
        .args(["-machine", "q35", "-cpu", "max,-cx16", "-m", "1024"])
        .args([
            "-nodefaults",
            "-no-user-config",
            "-no-reboot",
            "-display",
            "none",
        ])
        .args(["-serial", "stdio"])
        .args(["-append", &format!("console=ttyS0 {line}")])
        .arg("-qmp")
        .arg(format!("unix:{},server=on,wait=off", monitor.display()))
        .arg("-kernel")
        .arg(kernel.image())
        .arg("-initrd")
        .arg(initrd);
    for network in [Network::Data, Network::Control] {
        let port = network.port(host);
        command.arg("-netdev").arg(format!(
            "tap,id={port},ifname={port},script=no,downscript=no,vhost=off"
        ));
        command.arg("-device").arg(format!(
            "virtio-net-pci,romfile=,netdev={port},mac={}",
            host.mac(network)
        ));
    }
    command
}
