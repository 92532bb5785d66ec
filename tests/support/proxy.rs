//! A TCP proxy between a client and a server that misbehaves on demand: slow, cut, refused, frozen.
//!
//! Plain threads, so that a test's runtime cannot delay it.
#![allow(dead_code, unreachable_pub, missing_debug_implementations)]

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

/// What the proxy does with bytes and with new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Carries them.
    Pass,
    /// Nothing listens, and what was open is cut.
    Refuse,
    /// Accepts, and holds all bytes back in both directions.
    Freeze,
}

struct State {
    mode: Mode,
    reply_delay: Duration,
    /// Cut the connection instead of passing on this many replies.
    cuts: u32,
    accepted: u32,
    over: bool,
    open: Vec<TcpStream>,
}

type Shared = Arc<(Mutex<State>, Condvar)>;

/// A proxy to one server on 127.0.0.1. Ends when dropped.
pub struct Proxy {
    port: u16,
    shared: Shared,
}

impl Proxy {
    /// A proxy to this port of 127.0.0.1 that carries everything.
    pub fn to(server: u16) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        let state = State {
            mode: Mode::Pass,
            reply_delay: Duration::ZERO,
            cuts: 0,
            accepted: 0,
            over: false,
            open: Vec::new(),
        };
        let shared: Shared = Arc::new((Mutex::new(state), Condvar::new()));
        let theirs = Arc::clone(&shared);
        thread::spawn(move || accept(listener, port, server, &theirs));
        Proxy { port, shared }
    }

    /// Where it listens, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address, for a store without a password.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// From now on each reply arrives this much later.
    pub fn delay_replies(&self, delay: Duration) {
        self.change(|s| s.reply_delay = delay);
    }

    /// Cuts the connection when the next reply comes: the server has acted, the client never hears.
    pub fn cut_before_reply(&self) {
        self.change(|s| s.cuts += 1);
    }

    /// Closes what is open; new connections are welcome.
    pub fn cut(&self) {
        self.change(close);
    }

    /// Closes what is open, and listens no more.
    pub fn refuse(&self) {
        self.change(|s| {
            s.mode = Mode::Refuse;
            close(s);
        });
        // Refused means refused: wait until the listener is gone.
        while TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Accepts and answers nothing, until [`resume`](Proxy::resume).
    pub fn freeze(&self) {
        self.change(|s| s.mode = Mode::Freeze);
    }

    /// Carries everything again; bytes that were held back arrive.
    pub fn resume(&self) {
        let was = self.lock().mode;
        self.change(|s| s.mode = Mode::Pass);
        while was == Mode::Refuse && TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            thread::sleep(Duration::from_millis(1));
        }
        if was == Mode::Refuse {
            // The look above was a connection too.
            self.change(|s| s.accepted = s.accepted.saturating_sub(1));
        }
    }

    /// How many connections it has accepted.
    pub fn accepted(&self) -> u32 {
        self.lock().accepted
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.shared.1.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.change(|s| {
            s.over = true;
            close(s);
        });
    }
}

fn close(state: &mut State) {
    for stream in state.open.drain(..) {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

fn accept(listener: TcpListener, port: u16, server: u16, shared: &Shared) {
    let mut listener = Some(listener);
    loop {
        let mode = {
            let state = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
            if state.over {
                return;
            }
            state.mode
        };
        match (mode, &listener) {
            (Mode::Refuse, _) => listener = None,
            (_, None) => listener = TcpListener::bind(("127.0.0.1", port)).ok(),
            (_, Some(open)) => {
                let _ = open.set_nonblocking(true);
                while let Ok((client, _)) = open.accept() {
                    let _ = client.set_nonblocking(false);
                    carry(client, server, shared);
                }
            }
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn carry(client: TcpStream, server: u16, shared: &Shared) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { return };
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let copies = (client.try_clone(), server.try_clone(), client.try_clone(), server.try_clone());
    let (Ok(client_in), Ok(server_in), Ok(client_end), Ok(server_end)) = copies else { return };
    {
        let mut state = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.accepted += 1;
        state.open.extend([client_end, server_end]);
    }
    let theirs = Arc::clone(shared);
    thread::spawn(move || pump(client_in, server, &theirs, false));
    let theirs = Arc::clone(shared);
    thread::spawn(move || pump(server_in, client, &theirs, true));
}

/// Carries one direction: one thread reads and stamps, the other writes when its time has come, so
/// that a delay does not slow the flow.
fn pump(mut from: TcpStream, mut to: TcpStream, shared: &Shared, replies: bool) {
    let (sender, receiver) = mpsc::channel::<(Instant, Vec<u8>)>();
    let theirs = Arc::clone(shared);
    let (from_end, to_end) = (from.try_clone(), to.try_clone());
    thread::spawn(move || {
        for (due, bytes) in receiver {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let state = theirs.0.lock().unwrap_or_else(PoisonError::into_inner);
            let held = |s: &mut State| s.mode == Mode::Freeze && !s.over;
            drop(theirs.1.wait_while(state, held));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
    let mut buffer = vec![0; 1 << 16];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        let mut state = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        if replies && state.cuts > 0 {
            state.cuts -= 1;
            break;
        }
        let delay = if replies { state.reply_delay } else { Duration::ZERO };
        drop(state);
        if sender.send((Instant::now() + delay, buffer[..n].to_vec())).is_err() {
            break;
        }
    }
    drop(sender);
    // An end on either side is the end of both.
    for end in [from_end, to_end].into_iter().flatten() {
        let _ = end.shutdown(Shutdown::Read);
    }
}
