//! A real redis-server of a test's own: on a free port, in a folder of its own, gone when dropped.
//!
//! Never skips: where no redis-server can be started, the test fails. Shared by tests/*.rs and, by
//! `#[path]`, by unit tests; each uses a part of it.
#![allow(dead_code, unreachable_pub, missing_debug_implementations)]

use std::{
    fs,
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio, id},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

/// How long a server may take until it answers, on a machine that does other things too.
const START_MAX: Duration = Duration::from_secs(20);

/// A redis-server that lives as long as this value, also when the test panics.
#[derive(Debug)]
pub struct RedisServer {
    port: u16,
    password: Option<String>,
    options: Vec<String>,
    folder: PathBuf,
    child: Option<Child>,
}

impl RedisServer {
    /// A server without a password.
    pub fn start() -> RedisServer {
        RedisServer::with(None, &[])
    }

    /// A server whose default user has this password.
    pub fn with_password(password: &str) -> RedisServer {
        RedisServer::with(Some(password), &[])
    }

    /// A server with these words on its command line too, such as `--maxmemory 2mb`.
    pub fn with_options(options: &[&str]) -> RedisServer {
        RedisServer::with(None, options)
    }

    fn with(password: Option<&str>, options: &[&str]) -> RedisServer {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let folder = std::env::temp_dir().join(format!("tollgate-redis-{}-{}", id(), COUNT.fetch_add(1, Relaxed)));
        fs::create_dir_all(&folder).expect("a folder for the server");
        let mut server = RedisServer {
            port: 0,
            password: password.map(str::to_owned),
            options: options.iter().map(|&o| o.to_owned()).collect(),
            folder,
            child: None,
        };
        // Between the look for a free port and the server's start another process may take it.
        for _ in 0..5 {
            server.port = free_port();
            if server.launch() {
                return server;
            }
        }
        panic!("redis-server did not start; it must be installed for the tests");
    }

    /// Starts the process and waits until it, and nobody else, answers on the port.
    fn launch(&mut self) -> bool {
        let log = fs::File::create(self.folder.join("log")).expect("a log file");
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--daemonize", "no"]);
        command.args(["--port", &self.port.to_string()]).arg("--dir").arg(&self.folder);
        if let Some(password) = &self.password {
            command.args(["--requirepass", password]);
        }
        command.args(&self.options).stdin(Stdio::null()).stdout(log).stderr(Stdio::null());
        let child = command.spawn().unwrap_or_else(|e| panic!("redis-server cannot be run: {e}"));
        let pid = format!("process_id:{}\r", child.id());
        self.child = Some(child);
        let start = Instant::now();
        while start.elapsed() < START_MAX {
            if self.child.as_mut().is_some_and(|c| c.try_wait().is_ok_and(|end| end.is_some())) {
                return false;
            }
            if self.try_cli(&["INFO", "server"]).is_some_and(|info| info.contains(&pid)) {
                return true;
            }
            thread::sleep(Duration::from_millis(10));
        }
        self.kill();
        false
    }

    /// Where it listens, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address with the password, if it has one: what a store connects to.
    pub fn url(&self) -> String {
        match &self.password {
            Some(password) => format!("redis://:{password}@127.0.0.1:{}", self.port),
            None => format!("redis://127.0.0.1:{}", self.port),
        }
    }

    /// What redis-cli prints for these words, without the last line's end.
    pub fn cli(&self, words: &[&str]) -> String {
        self.try_cli(words).unwrap_or_else(|| panic!("redis-cli failed on {words:?}"))
    }

    /// The same with an answer that is a number.
    pub fn cli_number(&self, words: &[&str]) -> i64 {
        let text = self.cli(words);
        text.parse().unwrap_or_else(|_| panic!("{words:?}: {text}"))
    }

    fn try_cli(&self, words: &[&str]) -> Option<String> {
        let mut command = Command::new("redis-cli");
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string()]);
        if let Some(password) = &self.password {
            command.args(["--no-auth-warning", "-a", password]);
        }
        let output = command.args(words).stdin(Stdio::null()).output().expect("redis-cli must be installed");
        let text = String::from_utf8_lossy(&output.stdout).trim_end_matches('\n').to_owned();
        output.status.success().then_some(text)
    }

    /// How often a command was called since the start, or since `CONFIG RESETSTAT`.
    pub fn calls(&self, command: &str) -> u64 {
        let head = format!("cmdstat_{command}:calls=");
        let info = self.cli(&["INFO", "commandstats"]);
        let line = info.lines().find_map(|line| line.strip_prefix(head.as_str()));
        line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
    }

    /// Stops the process as the operating system would (SIGSTOP): it answers nothing, and its port
    /// still accepts.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Lets a frozen process go on.
    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.as_ref().expect("a running server").id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status().expect("kill");
        assert!(sent.success(), "kill {signal} {pid}");
    }

    /// Ends the process at once; its data is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it again on the same port, empty. Kills it first when it runs.
    pub fn restart(&mut self) {
        self.kill();
        assert!(self.launch(), "redis-server did not come back on port {}", self.port);
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A port of 127.0.0.1 on which nobody listens just now.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}
