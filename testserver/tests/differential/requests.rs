//! Random requests: commands from patterns, small scripts, and the scripts of leasehold.

use fastrand::Rng;
use std::fs;
use std::path::Path;

/// The words of a request.
pub(crate) type Request = Vec<Vec<u8>>;

/// One pattern per command. `k` stands for a key, `v` a value, `n` an integer, `f` a number, `e` a
/// field or a member, `c` a channel, `p` a pattern of names, `b` an end of a range of scores;
/// `+x` for one to three of it, `~A.x` for an option that is there at times, and `a|b` for one of
/// several words.
const PATTERNS: &[&str] = &[
    "APPEND k v",
    "COPY k k ~REPLACE",
    "DECR k",
    "DECRBY k n",
    "DEL +k",
    "ECHO v",
    "EXISTS +k",
    "EXPIRE k n ~NX ~XX ~GT ~LT",
    "EXPIREAT k n",
    "EXPIRETIME k",
    "GET k",
    "GETDEL k",
    "GETSET k v",
    "HDEL k +e",
    "HEXISTS k e",
    "HGET k e",
    "HGETALL k",
    "HINCRBY k e n",
    "HKEYS k",
    "HLEN k",
    "HMGET k +e",
    "HMSET k e v ~e.v",
    "HRANDFIELD k",
    "HRANDFIELD k n",
    "HRANDFIELD k n WITHVALUES",
    "HSET k e v ~e.v ~e.v",
    "HSETNX k e v",
    "HSTRLEN k e",
    "HVALS k",
    "INCR k",
    "INCRBY k n",
    "KEYS p",
    "LINDEX k n",
    "LLEN k",
    "LPOP k ~n",
    "LPOS k e ~RANK.n ~COUNT.n ~MAXLEN.n",
    "LPUSH k +e",
    "LRANGE k n n",
    "LREM k n e",
    "LSET k n e",
    "LTRIM k n n",
    "MGET +k",
    "MSET k v ~k.v",
    "PERSIST k",
    "PEXPIRE k n ~NX ~XX ~GT ~LT",
    "PEXPIREAT k n",
    "PEXPIRETIME k",
    "PING ~v",
    "PSETEX k n v",
    "PTTL k",
    "PUBLISH c v",
    "PUBSUB CHANNELS ~p",
    "PUBSUB NUMPAT",
    "PUBSUB NUMSUB +c",
    "PUBSUB SHARDCHANNELS ~p",
    "PUBSUB SHARDNUMSUB +c",
    "RENAME k k",
    "ROLE",
    "RPOP k ~n",
    "RPUSH k +e",
    "SADD k +e",
    "SCARD k",
    "SCRIPT EXISTS v",
    "SELECT 0|0|0|16|x",
    "SET k v ~NX ~XX ~GET ~KEEPTTL ~EX.n ~PX.n ~EXAT.n ~PXAT.n",
    "SETEX k n v",
    "SETNX k v",
    "SISMEMBER k e",
    "SMEMBERS k",
    "SPUBLISH c v",
    "SREM k +e",
    "STRLEN k",
    "TIME",
    "TTL k",
    "TYPE k",
    "UNLINK +k",
    "ZADD k ~NX ~XX ~GT ~LT ~CH f e ~f.e",
    "ZADD k ~NX ~XX ~GT ~LT INCR f e",
    "ZCARD k",
    "ZCOUNT k b b",
    "ZINCRBY k f e",
    "ZMSCORE k +e",
    "ZPOPMAX k ~n",
    "ZPOPMIN k ~n",
    "ZRANGE k n n ~REV ~WITHSCORES",
    "ZRANGE k b b BYSCORE ~REV ~WITHSCORES ~LIMIT.n.n",
    "ZRANGEBYSCORE k b b ~WITHSCORES ~LIMIT.n.n",
    "ZRANK k e",
    "ZREM k +e",
    "ZREMRANGEBYSCORE k b b",
    "ZREVRANGE k n n ~WITHSCORES",
    "ZREVRANGEBYSCORE k b b ~WITHSCORES ~LIMIT.n.n",
    "ZREVRANK k e",
    "ZSCORE k e",
    // Errors that name what is wrong.
    "CLIENT NOSUCH",
    "CONFIG",
    "PUBSUB",
    "SCRIPT NOSUCH x",
    "NOSUCH k v",
    "CLUSTER INFO",
    "EVALSHA v n k",
    "CLIENT SETNAME e",
    "CLIENT GETNAME",
    "CONFIG GET maxmemory appendonly",
];

/// Scripts for what scripts do with values, errors and the names of their environment.
const SNIPPETS: &[&str] = &[
    "return 1.9",
    "return -1.9",
    "return 1e300",
    "return 0/0",
    "return {1, 2, nil, 3}",
    "return {1.5, 'a', {true, false, 'b'}}",
    "return {ok='FINE'}",
    "return {err='ODD text'}",
    "return {err='ODD'}",
    "return true",
    "return false",
    "return",
    "return tostring(1/3) .. 1e20 .. 2^53",
    "return ARGV[1] + 1",
    "return redis.call('set', KEYS[1], 0.1)",
    "redis.call('set', KEYS[1], 1e17) return redis.call('get', KEYS[1])",
    "redis.call('set', KEYS[1], 1/3) return redis.call('get', KEYS[1])",
    "return redis.call('set', KEYS[1], 2^53)",
    "return redis.call('incrby', KEYS[1], 3.0)",
    "return redis.call('get', KEYS[1])",
    "return redis.call('hgetall', KEYS[1])",
    "return redis.call('zscore', KEYS[1], ARGV[1])",
    "return redis.call('zrange', KEYS[1], 0, -1, 'withscores')",
    "return redis.call('zpopmin', KEYS[1])",
    "return type(redis.call('zscore', KEYS[1], ARGV[1]))",
    "return {redis.call('ping'), redis.call('time')}",
    "return redis.pcall('incr', KEYS[1])",
    "local r = redis.pcall('incr', KEYS[1]) return type(r) == 'table' and r.err or r",
    "local r = redis.call('type', KEYS[1]) return r.ok",
    "return redis.pcall('incr').ignore_error_stats_update and 1 or 0",
    "return {redis.pcall('incr'), {err='CODE one'}, {err='CODE two'}}",
    "error(redis.pcall('incr', KEYS[1]))",
    "redis.pcall({}) redis.pcall('subscribe') redis.pcall('client', 'id') return 1",
    "return redis.call('incr', KEYS[1])",
    "\n\nreturn redis.call('hset', KEYS[1])",
    "return redis.pcall('nosuch', KEYS[1])",
    "return redis.call('nosuch', KEYS[1])",
    "return redis.call()",
    "return redis.call({})",
    "return redis.call('subscribe', 'c')",
    "return redis.call('hget', KEYS[1], false)",
    "return redis.error_reply('one')",
    "return redis.error_reply('two words')",
    "return redis.error_reply('-CODE text')",
    "return redis.status_reply('text')",
    "return redis.status_reply(1)",
    "return redis.error_reply()",
    "return redis.sha1hex('a')",
    "error('boom')",
    "error('boom', 0)",
    "error({err='CODE boom'})",
    "error()",
    "\nlocal function f() error('deep') end\nf()",
    "return nosuch",
    "nosuch = 1",
    "redis = 1",
    "local t = nil return t.x",
    "return 'a' .. nil",
    "return #KEYS + #ARGV",
    "return {KEYS[1], ARGV[1], KEYS[9]}",
    "return tonumber('abc')",
    "return tonumber('0x10')",
    "return ('x'):rep(3)",
    "return string.format('%.17g %5d %s', 0.1, 42, 'x')",
    "return math.floor(3.7) + math.max(1, 2) + math.huge",
    "return math.huge",
    "return {pcall(function() return redis.call('incr', KEYS[1]) end)}",
    "local ok, e = pcall(redis.call, 'nosuch') return type(e) == 'table' and e.err or tostring(e)",
    "local ok, e = pcall(error, 'x') return e",
    "return {unpack({1, 2, 3})}",
    "return table.concat({1, 2.5, 'x'}, ',')",
    "return select('#', nil, nil)",
    "return _VERSION",
    "return redis.REDIS_VERSION",
    "return redis.call('set', KEYS[1], 'x', 'px', ARGV[1])",
    "return redis.call('pexpire', KEYS[1], 1.5)",
    "return redis.call('publish', 'c1', 7)",
    "return redis.call('time')[1] - redis.call('time')[1]",
    "syntax error here",
    "return 1 +",
    "for i = 1, 3 do redis.call('rpush', KEYS[1], i) end return redis.call('lrange', KEYS[1], 0, -1)",
    "return redis.call('lpos', KEYS[1], 'm1')",
    "return redis.call('lpop', KEYS[1], 2)",
    "return redis.call('getdel', KEYS[1])",
    "return {redis.call('exists', KEYS[1]), redis.call('pttl', KEYS[1])}",
    "return redis.call('smembers', 'absent')",
    "return redis.call('config', 'get', 'maxmemory')",
    "return redis.call('eval', 'return 1', 0)",
    "return redis.call('role')",
    "return redis.call('wait', 0, 0)",
    "return redis.call('pubsub', 'numsub', 'c1')",
    "return redis.sha1hex(nil)",
    "rawset(_G, 'leak', 1)",
    "redis.call = nil",
    "string.foo = 1",
    "return {rawget(_G, 'redis') == redis, type(next(redis)), type(pairs(math)(math))}",
    "return #table.concat({1, 2}) + select('#', pairs({}))",
];

/// A script of leasehold, with what its header says of its keys and arguments.
struct Script {
    text: String,
    digest: String,
    keys: Vec<String>,
    arguments: Vec<String>,
}

/// The source of random requests.
pub(crate) struct Requests {
    random: Rng,
    scripts: Vec<Script>,
    /// In microseconds since 1970.
    pub(crate) now: i64,
}

impl Requests {
    pub(crate) fn new(seed: u64, now: i64) -> Self {
        Self { random: Rng::with_seed(seed), scripts: scripts(), now }
    }

    /// Returns the requests that make all scripts known.
    pub(crate) fn loads(&self) -> Vec<Request> {
        let load = |script: &Script| {
            vec![b"SCRIPT".to_vec(), b"LOAD".to_vec(), script.text.clone().into_bytes()]
        };
        self.scripts.iter().map(load).collect()
    }

    /// Moves the clock a little, or by more than most times to live.
    pub(crate) fn pass_time(&mut self) {
        self.now += match self.random.u32(..20) {
            0..=8 => 0,
            9..=12 => self.random.i64(0..1000),
            13..=16 => self.random.i64(0..10_000),
            17..=18 => self.random.i64(0..1_000_000),
            _ => self.random.i64(0..60_000_000),
        };
    }

    /// Returns a random number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.random.usize(..end)
    }

    pub(crate) fn request(&mut self) -> Request {
        let mut request = match self.random.u32(..100) {
            0..50 => self.command(),
            50..60 => self.snippet(),
            _ => self.script_call(),
        };
        // At times an argument too few or too many, or an odd one.
        match self.random.u32(..60) {
            0 if request.len() > 1 => {
                request.pop();
            }
            1 => request.push(self.value()),
            2 if request.len() > 1 => {
                let at = self.random.usize(1..request.len());
                request[at] = self.value();
            }
            3 => request[0].make_ascii_lowercase(),
            _ => {}
        }
        request
    }

    fn command(&mut self) -> Request {
        let pattern = PATTERNS[self.random.usize(..PATTERNS.len())];
        let mut request = Request::new();
        for word in pattern.split(' ') {
            if let Some(word) = word.strip_prefix('+') {
                for _ in 0..self.random.u32(1..4) {
                    let word = self.word(word);
                    request.push(word);
                }
            } else if let Some(words) = word.strip_prefix('~') {
                if self.random.u32(..5) == 0 {
                    request.extend(words.split('.').map(|word| self.word(word)));
                }
            } else {
                let words: Vec<&str> = word.split('|').collect();
                let chosen = words[self.random.usize(..words.len())];
                let word = self.word(chosen);
                request.push(word);
            }
        }
        request
    }

    fn word(&mut self, word: &str) -> Vec<u8> {
        match word {
            "k" => self.key(),
            "v" => self.value(),
            "n" => self.integer(),
            "f" => self.float(),
            "b" => {
                let open = if self.random.u32(..3) == 0 { "(" } else { "" };
                [open.as_bytes(), &self.float()].concat()
            }
            "e" => format!("m{}", self.random.u32(..6)).into_bytes(),
            "c" => format!("c{}", self.random.u32(..4)).into_bytes(),
            "p" => self.one_of(&["*", "k?", "k[0-3]", "c1", "[^k]*", "*3*", "k\\1", ""]),
            word => word.as_bytes().to_vec(),
        }
    }

    fn key(&mut self) -> Vec<u8> {
        format!("k{}", self.random.u32(..12)).into_bytes()
    }

    fn one_of(&mut self, words: &[&str]) -> Vec<u8> {
        words[self.random.usize(..words.len())].as_bytes().to_vec()
    }

    fn value(&mut self) -> Vec<u8> {
        match self.random.u32(..10) {
            0..4 => self.integer(),
            4..6 => self.float(),
            6..8 => format!("m{}", self.random.u32(..6)).into_bytes(),
            8 => (0..self.random.u32(..12)).map(|_| self.random.u8(..)).collect(),
            _ => self.one_of(&["", " ", "value", "\r\n", "long value without an end in sight"]),
        }
    }

    fn integer(&mut self) -> Vec<u8> {
        match self.random.u32(..12) {
            0..7 => self.random.i64(-3..8).to_string().into_bytes(),
            7..9 => self.random.i64(0..40_000).to_string().into_bytes(),
            9 => {
                let around = self.random.i64(-2000..2000);
                let now = self.one_of(&["s", "ms"]);
                let now = if now == b"s" { self.now / 1_000_000 } else { self.now / 1000 };
                (now + around).to_string().into_bytes()
            }
            10 => self.one_of(&[
                "9223372036854775807",
                "-9223372036854775808",
                "9223372036854775808",
                "4611686018427387904",
                "9007199254740993",
            ]),
            _ => self.one_of(&["+1", "01", "-0", "1.0", "1e3", "", " 1", "1 ", "x", "--1"]),
        }
    }

    fn float(&mut self) -> Vec<u8> {
        match self.random.u32(..12) {
            0..6 => self.random.i32(-3..6).to_string().into_bytes(),
            6..9 => format!("{}", f64::from(self.random.i32(-4000..4000)) / 16.0).into_bytes(),
            9 => format!("{:e}", self.random.f64() * 1e20).into_bytes(),
            10 => self.one_of(&["inf", "-inf", "+inf", "Infinity", "1e400", "1e-400", "5e-324"]),
            _ => self.one_of(&["nan", "", "x", "1.", ".5", "-0", "+3", "1e", " 2", "0.1", "1e17"]),
        }
    }

    fn snippet(&mut self) -> Request {
        let text = SNIPPETS[self.random.usize(..SNIPPETS.len())];
        let mut request = vec![b"EVAL".to_vec(), text.as_bytes().to_vec(), b"1".to_vec()];
        request.push(self.key());
        request.push(self.value());
        request
    }

    fn script_call(&mut self) -> Request {
        let at = self.random.usize(..self.scripts.len());
        let lock = self.random.u32(..3);
        let script = &self.scripts[at];
        let (digest, keys, arguments) =
            (script.digest.clone(), script.keys.clone(), script.arguments.clone());
        let mut words = Request::new();
        for role in &keys {
            let is_plain = self.random.u32(..12) == 0;
            words.push(if is_plain { self.key() } else { format!("{{{lock}}}:{role}").into() });
        }
        let key_count = words.len();
        let optional = self.random.usize(..3);
        let skipped = if optional == 0 { self.random.usize(..arguments.len().max(1)) } else { 0 };
        for role in &arguments[..arguments.len() - skipped] {
            let argument = self.argument(role);
            words.push(argument);
        }
        let head = ["EVALSHA".to_owned(), digest, key_count.to_string()];
        head.into_iter().map(String::into_bytes).chain(words).collect()
    }

    /// Returns an argument that fits its description in the header of a script.
    fn argument(&mut self, role: &str) -> Vec<u8> {
        if self.random.u32(..25) == 0 {
            return self.value();
        }
        let has = |words: &[&str]| words.iter().any(|word| role.contains(word));
        if has(&["owner", "hold"]) && !has(&["ms", "field"]) {
            let client = self.random.u32(..3);
            let suffix = self.one_of(&["", "", "", ":write"]);
            let owner = format!("0000000{client}-0000-4000-8000-000000000000:");
            let thread = self.random.u32(1..3).to_string();
            [owner.as_bytes(), thread.as_bytes(), &suffix].concat()
        } else if has(&["channel", "prefix"]) {
            format!("c{}", self.random.u32(..4)).into_bytes()
        } else if has(&["message"]) {
            self.one_of(&["0", "1", "text"])
        } else if has(&["mode"]) {
            self.one_of(&["single", "cluster"])
        } else if has(&["since 1970", "time in us"]) {
            (self.now - self.random.i64(0..5_000_000)).to_string().into_bytes()
        } else if has(&["ms", "lifetime", "lease"]) {
            self.random.i64(1..20_000).to_string().into_bytes()
        } else if has(&["permits", "number", "count", "token", "place", "weight"]) {
            self.random.i64(-1..6).to_string().into_bytes()
        } else {
            self.value()
        }
    }
}

/// Reads the scripts of leasehold, each behind the common texts that it uses.
fn scripts() -> Vec<Script> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lua");
    let files = fs::read_dir(&folder).expect("the scripts of leasehold stand beside this crate");
    let mut paths: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    paths.sort();
    let read = |path: &Path| {
        let text = fs::read_to_string(path).expect("a text");
        text.lines().map(|line| without_chance(line) + "\n").collect::<String>()
    };
    let (common, own): (Vec<String>, Vec<String>) = paths
        .iter()
        .map(|path| read(path))
        .partition(|text| text.lines().any(|line| line == "-- KEYS: -"));
    let functions = |text: &str| -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix("local function "));
        lines.filter_map(|line| Some(format!("{}(", line.split_once('(')?.0))).collect()
    };
    let script = |text: String| {
        let uses = |other: &&String| functions(other).iter().any(|name| text.contains(name));
        let used: String = common.iter().rev().filter(uses).map(String::as_str).collect();
        let (keys, arguments) = (roles(&text, "KEYS"), roles(&text, "ARGV"));
        let text = used + &text;
        let digest = sha1_smol::Sha1::from(&text).digest().to_string();
        Script { text, digest, keys, arguments }
    };
    own.into_iter().map(script).collect()
}

/// Has a line of a script choose so many fields of a hash that there is no choice.
fn without_chance(line: &str) -> String {
    if !line.contains("'hrandfield'") {
        return line.to_owned();
    }
    [", 2)", ", 3)"]
        .iter()
        .fold(line.to_owned(), |line, few| line.replace(few, ", 1000)"))
        .replace(", some,", ", 1000,")
}

/// Returns the descriptions of the keys or arguments in a script's header.
fn roles(text: &str, title: &str) -> Vec<String> {
    let start = format!("-- {title}: ");
    let mut lines = text.lines().skip_while(|line| !line.starts_with(&start));
    let mut header = lines.next().expect("a header")[start.len()..].to_owned();
    for line in lines.map_while(|line| line.strip_prefix("--   ")) {
        header += " ";
        header += line;
    }
    if header == "none" {
        return Vec::new();
    }
    let mut roles: Vec<String> = Vec::new();
    for word in header.replace(',', "").split(' ') {
        match (word.parse::<usize>(), roles.last_mut()) {
            (Ok(_), _) | (_, None) => roles.push(word.to_owned()),
            (Err(_), Some(role)) => *role += &format!(" {word}"),
        }
    }
    let name = |role: String| match role.split_once(' ') {
        Some((_, name)) => name.split(" of ").next().unwrap_or(name).to_owned(),
        None => role,
    };
    roles.into_iter().map(name).collect()
}
