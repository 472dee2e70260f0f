//! Calls that a Cluster's node redirects to another one.
//!
//! The client of the crate `redis` follows redirections only if it also repeats calls whose reply it did not receive. Those
//! may have been charged. So it repeats nothing, and this module repeats calls that no node has run: MOVED, ASK and
//! TRYAGAIN.

use std::thread;
use std::time::Duration;

use redis::cluster::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::{
    Cmd, ConnectionLike, ErrorKind, FromRedisValue, RedisError, RedisResult, ScriptInvocation,
    ServerErrorKind, Value,
};

/// The most nodes to which a call is redirected.
const MOST: usize = 2;
/// The pause before a call that a node defers is repeated.
const DEFERRED: Duration = Duration::from_millis(10);

/// The script's result, and whether the connection knows which node has the key.
pub(crate) fn invoke<T: FromRedisValue>(
    connection: &mut ClusterConnection,
    call: &ScriptInvocation<'_>,
) -> RedisResult<(T, bool)> {
    let (mut result, mut is_valid) = (call.invoke(connection), true);
    for _ in 0..MOST {
        let Err(error) = &result else { break };
        result = match error.kind() {
            ErrorKind::Server(kind @ (ServerErrorKind::Moved | ServerErrorKind::Ask)) => {
                let is_asking = kind == ServerErrorKind::Ask;
                // Only a new connection reads which node has which slots.
                is_valid &= is_asking;
                let Some(node) = node(error) else { break };
                call.invoke(&mut Redirected {
                    connection,
                    node,
                    is_asking,
                })
            }
            ErrorKind::Server(ServerErrorKind::TryAgain) => {
                thread::sleep(DEFERRED);
                call.invoke(connection)
            }
            _ => break,
        };
    }
    Ok((result?, is_valid))
}

/// The node that has the key.
fn node(error: &RedisError) -> Option<RoutingInfo> {
    let (address, _) = error.redirect_node()?;
    let (host, port) = address.rsplit_once(':')?;
    let (host, port) = (host.to_owned(), port.parse().ok()?);
    let node = SingleNodeRoutingInfo::ByAddress { host, port };
    Some(RoutingInfo::SingleNode(node))
}

/// A connection that sends each command to one node.
struct Redirected<'a> {
    connection: &'a mut ClusterConnection,
    node: RoutingInfo,
    /// Whether the node is about to receive the slot, and runs a command only after ASKING.
    is_asking: bool,
}

impl ConnectionLike for Redirected<'_> {
    fn req_command(&mut self, command: &Cmd) -> RedisResult<Value> {
        if self.is_asking {
            self.connection
                .route_command(&redis::cmd("ASKING"), self.node.clone())?
                .extract_error()?;
        }
        self.connection.route_command(command, self.node.clone())
    }

    fn req_packed_command(&mut self, _: &[u8]) -> RedisResult<Value> {
        Err(not_supported())
    }

    fn req_packed_commands(&mut self, _: &[u8], _: usize, _: usize) -> RedisResult<Vec<Value>> {
        Err(not_supported())
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }

    fn check_connection(&mut self) -> bool {
        self.connection.check_connection()
    }

    fn is_open(&self) -> bool {
        self.connection.is_open()
    }
}

/// Scripts are invoked by single commands.
fn not_supported() -> RedisError {
    RedisError::from((
        ErrorKind::Client,
        "pipelines cannot be redirected to another node",
    ))
}
