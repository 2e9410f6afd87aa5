//! What clients see of a cluster.

use super::super::cluster::{ClusterView, Node, slot_of};
use super::super::resp::Reply;
use super::super::state::Mode;
use super::{Call, Command, Outcome, refusal};

pub(super) const COMMANDS: &[Command] = &[
    Command::control("ASKING", 1, |call| {
        view(call)?;
        call.connection()?.is_asking = true;
        Ok(Reply::ok())
    }),
    Command::keyless("CLUSTER|INFO", 2, |call| Ok(Reply::Verbatim(info(view(call)?)))),
    Command::keyless("CLUSTER|KEYSLOT", 3, |call| {
        view(call)?;
        Ok(Reply::Integer(slot_of(&call.args[2]).into()))
    }),
    Command::keyless("CLUSTER|MYID", 2, |call| Ok(Reply::bulk(view(call)?.own.clone()))),
    Command::keyless("CLUSTER|NODES", 2, |call| missing(call, "CLUSTER NODES")),
    Command::keyless("CLUSTER|SHARDS", 2, |call| missing(call, "CLUSTER SHARDS")),
    Command::keyless("CLUSTER|SLOTS", 2, |call| Ok(slots(view(call)?))),
    Command::control("READONLY", 1, |call| missing(call, "reads from replicas")),
    Command::control("READWRITE", 1, |call| missing(call, "reads from replicas")),
];

fn view<'a>(call: &'a Call<'_>) -> Result<&'a ClusterView, String> {
    match &call.state.mode {
        Mode::Cluster(view) => Ok(view),
        Mode::Standalone | Mode::Sentinel(_) => {
            Err("ERR This instance has cluster support disabled".to_owned())
        }
    }
}

fn missing(call: &Call<'_>, what: &str) -> Outcome {
    view(call)?;
    Err(refusal(what))
}

fn info(view: &ClusterView) -> String {
    let (map, state) = (&view.map, if view.is_ok() { "ok" } else { "fail" });
    let (served, nodes, size) = (map.served(), map.nodes().len(), map.size());
    let (epoch, own_epoch) = (map.epoch(), view.own_epoch());
    format!(
        "cluster_state:{state}\r\ncluster_slots_assigned:{served}\r\ncluster_slots_ok:{served}\r\n\
         cluster_slots_pfail:0\r\ncluster_slots_fail:0\r\ncluster_known_nodes:{nodes}\r\n\
         cluster_size:{size}\r\ncluster_current_epoch:{epoch}\r\ncluster_my_epoch:{own_epoch}\r\n\
         cluster_stats_messages_sent:0\r\ncluster_stats_messages_received:0\r\n\
         total_cluster_links_buffer_limit_exceeded:0\r\n"
    )
}

fn slots(view: &ClusterView) -> Reply {
    let node = |node: &Node| {
        let (host, id) = (Reply::bulk(node.address.host.clone()), Reply::bulk(node.id.clone()));
        let port = Reply::Integer(node.address.port.into());
        Reply::Array(vec![host, port, id, Reply::Map(Vec::new())])
    };
    let range = |(slots, nodes): (std::ops::RangeInclusive<u16>, Vec<&Node>)| {
        let bounds = [*slots.start(), *slots.end()].map(|slot| Reply::Integer(slot.into()));
        Reply::Array(bounds.into_iter().chain(nodes.into_iter().map(node)).collect())
    };
    Reply::Array(view.map.ranges().into_iter().map(range).collect())
}
