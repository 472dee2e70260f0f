-- One host publishes what its busy keys consumed and reads what the others have published since it last read.
--
-- KEYS[1]  publications, a hash: '#clock', '#secret' of all hosts, 'p:<host>' the newest publication of one
-- KEYS[2]  when each host published last, a sorted set, in microseconds of the clock below
-- ARGV     host, lease (microseconds), the clock at the last read, a secret in case there is none, publication, 1 to leave
-- Returns  the clock, the secret, {host, when, host, when, ...} of all, {host, publication, ...} of the other hosts
--
-- The clock is the store's, and never goes back while the hash is there.
local publications, seen = KEYS[1], KEYS[2]
local host, lease, read, secret, publication = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local known = redis.call('HMGET', publications, '#clock', '#secret')
now = math.max(now, tonumber(known[1] or '0') + 1)
local function whole(number) return string.format('%.0f', number) end
-- A host that read a later clock than this read another store's.
if read >= now then read = 0 end

for _, name in ipairs(redis.call('ZRANGEBYSCORE', seen, '-inf', whole(now - lease), 'LIMIT', 0, 100)) do
  redis.call('HDEL', publications, 'p:' .. name)
  redis.call('ZREM', seen, name)
end
if ARGV[6] == '1' then
  redis.call('HDEL', publications, 'p:' .. host)
  redis.call('ZREM', seen, host)
else
  redis.call('HSET', publications, 'p:' .. host, publication)
  redis.call('ZADD', seen, whole(now), host)
end
redis.call('HSET', publications, '#clock', whole(now), '#secret', known[2] or secret)
local keep = math.max(60000, math.ceil(lease / 1000) * 60)
redis.call('PEXPIRE', publications, keep)
redis.call('PEXPIRE', seen, keep)

local hosts, news = redis.call('ZRANGE', seen, 0, -1, 'WITHSCORES'), {}
for nth = 1, #hosts, 2 do
  if hosts[nth] ~= host and tonumber(hosts[nth + 1]) > read then
    news[#news + 1] = hosts[nth]
    news[#news + 1] = redis.call('HGET', publications, 'p:' .. hosts[nth]) or ''
  end
end
return { whole(now), known[2] or secret, hosts, news }
