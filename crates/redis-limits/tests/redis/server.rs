//! A redis-server for a test, and what a test asks it.

use std::time::Duration;

use redis_limits::Store;
use testbed::redis::Redis;
use testbed::wait::PATIENCE;
#[cfg(feature = "cluster")]
use testbed::wait::until;

/// A running server, killed when dropped.
pub struct Server(Redis);

impl Server {
    /// Starts one, and waits until it answers.
    pub fn start() -> Self {
        Self(Redis::start(&[]))
    }

    pub fn address(&self) -> String {
        self.0.url()
    }

    pub fn store(&self, timeout: Duration) -> Store {
        Store::single(&self.address(), timeout).unwrap()
    }

    /// Holds it where it is: it neither answers nor closes a connection.
    pub fn pause(&self) {
        self.0.hang();
    }

    pub fn go_on(&self) {
        self.0.go_on();
    }

    pub fn stop(&mut self) {
        self.0.kill();
    }

    /// On the same port, with nothing in memory.
    pub fn restart(&mut self) {
        self.0.restart();
    }

    /// Its reply as text.
    pub fn command(&self, words: &[&str]) -> redis::Value {
        let client = redis::Client::open(self.address()).unwrap();
        let mut connection = client.get_connection_with_timeout(PATIENCE).unwrap();
        redis::cmd(words[0])
            .arg(&words[1..])
            .query(&mut connection)
            .unwrap()
    }

    #[cfg(feature = "cluster")]
    fn cluster_info(&self) -> String {
        redis::from_redis_value(self.command(&["CLUSTER", "INFO"])).unwrap()
    }

    pub fn keys(&self) -> u64 {
        redis::from_redis_value(self.command(&["DBSIZE"])).unwrap()
    }

    /// How long the key lives that lives longest; panics if one lives for good.
    pub fn longest_life(&self) -> Duration {
        let keys: Vec<String> = redis::from_redis_value(self.command(&["KEYS", "*"])).unwrap();
        let life = |key: &String| -> i64 {
            redis::from_redis_value(self.command(&["PTTL", key])).unwrap()
        };
        let lives = keys
            .iter()
            .map(life)
            .inspect(|life| assert_ne!(*life, -1, "a key for good"));
        Duration::from_millis(lives.max().unwrap_or(0).max(0) as u64)
    }
}

/// Two nodes that share the slots.
#[cfg(feature = "cluster")]
pub struct Cluster([Server; 2]);

#[cfg(feature = "cluster")]
impl Cluster {
    pub fn start() -> Self {
        let options = [
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            "60000",
        ];
        let nodes = [(); 2].map(|()| Server(Redis::start(&options)));
        nodes[0].command(&["CLUSTER", "ADDSLOTSRANGE", "0", "8191"]);
        nodes[1].command(&["CLUSTER", "ADDSLOTSRANGE", "8192", "16383"]);
        nodes[1].command(&["CLUSTER", "SET-CONFIG-EPOCH", "2"]);
        let port = nodes[1].0.port().to_string();
        until("a cluster of two nodes", || {
            let states = nodes.each_ref().map(Server::cluster_info);
            // A node forgets a handshake that takes too long.
            if states.iter().any(|state| state.contains("known_nodes:1\r")) {
                nodes[0].command(&["CLUSTER", "MEET", "127.0.0.1", &port]);
            }
            let is_whole = |state: &String| {
                state.contains("cluster_state:ok") && state.contains("cluster_size:2")
            };
            states.iter().all(is_whole).then_some(())
        });
        Self(nodes)
    }

    pub fn addresses(&self) -> Vec<String> {
        self.0.iter().map(Server::address).collect()
    }

    pub fn keys(&self) -> [u64; 2] {
        [self.0[0].keys(), self.0[1].keys()]
    }

    pub fn pause(&self) {
        self.0.iter().for_each(Server::pause);
    }

    pub fn go_on(&self) {
        self.0.iter().for_each(Server::go_on);
    }

    /// The slot of the only key, after its removal; the node that has it, and the other one.
    pub fn remove_key(&self) -> (String, &Server, &Server) {
        let [one, other] = &self.0;
        let (from, to) = if one.keys() == 1 {
            (one, other)
        } else {
            (other, one)
        };
        let keys: Vec<String> = redis::from_redis_value(from.command(&["KEYS", "*"])).unwrap();
        let slot: u16 =
            redis::from_redis_value(from.command(&["CLUSTER", "KEYSLOT", &keys[0]])).unwrap();
        from.command(&["DEL", &keys[0]]);
        (slot.to_string(), from, to)
    }
}
