-- One host publishes what its busy keys consumed and reads what the others have published since it last read. It also
-- writes the use of its keys, for hosts that join later.
--
-- KEYS[1]  publications, a hash: '#clock', '#offset' of it from the store's, '#begun' when the hash was new, '#secret' of all
--          hosts, '#kept' 1 if a host had it before, 'p:<host>' the newest publication of one, 'l:<host>' its lease and sync
--          in microseconds
-- KEYS[2]  when each host published last, a sorted set, in microseconds of the clock below
-- KEYS[3]  use, a hash: '#epoch', '#version', '#restored', for each key '<order> <order> <state>', and 'h:<host>' the
--          sequence of a host's last request
-- KEYS[4]  the version at which the use of each key last changed, a sorted set
-- KEYS[5]  when the use of each key ends, and a host's sequence, a sorted set, in milliseconds of the clock below
-- KEYS[6]  resets, a hash: '#version', which is another one after each change, '#secret' of the keys, and for each key
--          '<era> <time>'; see decision 51
-- ARGV     host, lease (microseconds), the clock at the last read, a secret in case there is none, publication, 1 to leave,
--          sync (microseconds), an epoch of the use in case there is none, the version at the last read of the use, the
--          most keys of use to return, their most bytes, the most keys to store, 1 if this use may be new to the store,
--          1 if the host had its secret before, the sequence of this request, that of the last one with a reply or 0, the
--          version at the last read of the resets, the number of resets that follow; then for each reset: name, era, time;
--          then for each key of use: name, two numbers by which states are ordered, milliseconds to its end, state
-- Returns  the clock, the secret, {host, when, host, when, ...} of all, {host, publication, ...} of the other hosts,
--          {lease and sync, ...} of all in the same order; of the use: the epoch, the version, the version of the last
--          change that other hosts have to read, {version, name, state, ...}; {1 if the store is new, 1 if it has lost
--          requests of this host, 1 if more use follows}; the version of the resets, and {name, entry, ...} of all resets, or
--          {} if the version is the host's
--
-- The clock is the store's. If that is set back, it goes on from where it was. The first command that writes needs memory:
-- a store without memory refuses it, and nothing is changed. After another write, Redis would continue the script.
--
-- A store is new for a lease from its first request on, and from the loss of the use on. In that time the secret of a host that
-- knew one before replaces that of a new host, so that hosts need not forget what they know.
local publications, seen, use, versions, ends, resets = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local host, lease, read, secret, publication = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]
local leaves, page, page_bytes, most = ARGV[6] == '1', tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local restores, is_kept, sequence, replied = ARGV[13] == '1', ARGV[14], ARGV[15], tonumber(ARGV[16])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local known = redis.call('HMGET', publications, '#clock', '#secret', '#offset', '#begun', '#kept')
local clock, offset = tonumber(known[1] or '0'), 0
if now <= clock then offset = math.max(tonumber(known[3] or '0'), clock + 1 - now) end
now = now + offset
local function whole(number) return string.format('%.0f', number) end
-- A host that read a later clock than this read another store's.
if read >= now then read = 0 end

-- A store that evicts keys may lose one of three that belong together. Without versions no host would read the use, and
-- without ends it would stay for ever: the rest is as good as lost. The hosts write their use again, as in a new store.
local head = redis.call('HMGET', use, '#epoch', '#version', '#restored', 'h:' .. host, '#keys')
local is_torn = tonumber(head[5] or '0') > 0 and (redis.call('ZCARD', versions) == 0 or redis.call('ZCARD', ends) == 0)
local begun = now
if known[2] and head[1] and not is_torn then begun = tonumber(known[4] or '0') end
local is_new = now < begun + lease
if known[2] and not (is_new and known[5] ~= '1' and is_kept == '1') then secret, is_kept = known[2], known[5] or '0' end
redis.call('HSET', publications, '#clock', whole(now), '#secret', secret, '#offset', whole(offset), '#begun', whole(begun),
  '#kept', is_kept)
-- Each host has its own lease, of at least a second. Hosts of earlier versions do not write it.
local quiet = redis.call('ZRANGEBYSCORE', seen, '-inf', whole(now - 1000000), 'WITHSCORES', 'LIMIT', 0, 1000)
for nth = 1, #quiet, 2 do
  local name = quiet[nth]
  local its_lease = string.match(redis.call('HGET', publications, 'l:' .. name) or '', '^(%d+) ')
  if tonumber(quiet[nth + 1]) + (tonumber(its_lease or '') or lease) <= now then
    redis.call('HDEL', publications, 'p:' .. name, 'l:' .. name)
    redis.call('ZREM', seen, name)
  end
end
if leaves then
  redis.call('HDEL', publications, 'p:' .. host, 'l:' .. host)
  redis.call('ZREM', seen, host)
else
  redis.call('HSET', publications, 'p:' .. host, publication, 'l:' .. host, ARGV[2] .. ' ' .. ARGV[7])
  redis.call('ZADD', seen, whole(now), host)
end

if is_torn then
  for _, key in ipairs({ use, versions, ends }) do redis.call('PEXPIRE', key, 0) end
  head = {}
end
local milliseconds = math.floor(now / 1000)
local function remove(name)
  redis.call('HDEL', use, name)
  redis.call('ZREM', versions, name)
  redis.call('ZREM', ends, name)
end
for _, name in ipairs(redis.call('ZRANGEBYSCORE', ends, '-inf', whole(milliseconds), 'LIMIT', 0, 1000)) do remove(name) end
-- The greater era of a key's reset, and in it the later time, replaces the other. A reset of a whole limit, whose name ends with
-- zeros, ends the eras of its keys before. Resets of hosts with another secret are those of other keys.
local first_use = 19 + 3 * tonumber(ARGV[18])
local resets_head = redis.call('HMGET', resets, '#version', '#secret')
local resets_version = resets_head[1] or ''
if resets_head[2] and resets_head[2] ~= secret then
  redis.call('PEXPIRE', resets, 0)
  resets_version = ''
end
if first_use > 19 and secret == ARGV[4] then
  local function reset_of(entry)
    local era, at = string.match(entry or '', '^(%d+) (%d+)$')
    return tonumber(era or '0'), tonumber(at or '0')
  end
  local function of_limit(name) return name:sub(1, 8) .. string.rep('\0', 8) end
  local function era_of(name)
    local _, at = reset_of(redis.call('HGET', resets, of_limit(name)))
    return at
  end
  local has_changed, has_ended = false, false
  for nth = 19, first_use - 1, 3 do
    local name, era, at = ARGV[nth], tonumber(ARGV[nth + 1]), tonumber(ARGV[nth + 2])
    local era_before, at_before = reset_of(redis.call('HGET', resets, name))
    local is_later = era > era_before or era == era_before and at > at_before
    local is_all = name == of_limit(name)
    if is_later and (is_all or era >= era_of(name)) then
      redis.call('HSET', resets, name, whole(era) .. ' ' .. whole(at))
      has_changed, has_ended = true, has_ended or is_all
    end
  end
  if has_ended then
    local all = redis.call('HGETALL', resets)
    for nth = 1, #all, 2 do
      local name, its_era = all[nth], reset_of(all[nth + 1])
      local is_key = #name == 16 and name ~= of_limit(name)
      if is_key and its_era < era_of(name) then redis.call('HDEL', resets, name) end
    end
  end
  if has_changed then
    resets_version = ARGV[8] .. whole(now)
    redis.call('HSET', resets, '#version', resets_version, '#secret', secret)
  end
end
if resets_version ~= '' then redis.call('PEXPIRE', resets, 90 * 86400000) end
local all_resets = {}
if resets_version ~= ARGV[17] then all_resets = redis.call('HGETALL', resets) end

local has_lost = tonumber(head[4] or '0') < replied
local epoch, restored = head[1] or ARGV[8], tonumber(head[3] or '0')
-- The newest change counts, too: the store may have lost the hash alone.
local newest = redis.call('ZRANGE', versions, -1, -1, 'WITHSCORES')
local version = math.max(tonumber(head[2] or '0'), tonumber(newest[2] or '0'))
local count = redis.call('ZCARD', ends)
-- A later state of a key replaces an earlier one. Every host writes what all have used, as far as it has received it.
for nth = first_use, #ARGV, 5 do
  local name, first, second = ARGV[nth], tonumber(ARGV[nth + 1]), tonumber(ARGV[nth + 2])
  local entry = table.concat({ ARGV[nth + 1], ARGV[nth + 2], ARGV[nth + 4] }, ' ')
  local before = redis.call('HGET', use, name)
  local first_before, second_before = string.match(before or '', '^(%d+) (%d+) ')
  first_before, second_before = tonumber(first_before or '0'), tonumber(second_before or '0')
  local is_later = first > first_before or first == first_before and second >= second_before
  if before ~= entry and is_later and (before or count < most) then
    version = version + 1
    if restores then restored = version end
    if not before then count = count + 1 end
    redis.call('HSET', use, name, entry)
    redis.call('ZADD', versions, whole(version), name)
    redis.call('ZADD', ends, whole(milliseconds + tonumber(ARGV[nth + 3])), name)
  end
end
-- A host that misses its last request learns that the store has lost what hosts wrote since then.
local keep = math.max(60000, math.ceil(lease / 1000) * 60)
redis.call('HSET', use, '#epoch', epoch, '#version', whole(version), '#restored', whole(restored), 'h:' .. host, sequence,
  '#keys', redis.call('ZCARD', versions))
redis.call('ZADD', ends, whole(milliseconds + keep), 'h:' .. host)

local changes, bytes, has_more = {}, 0, '0'
if page > 0 then
  local from = tonumber(ARGV[9])
  if from > version then from = 0 end
  local changed = redis.call('ZRANGEBYSCORE', versions, '(' .. whole(from), '+inf', 'WITHSCORES', 'LIMIT', 0, page)
  if #changed == 2 * page then has_more = '1' end
  for nth = 1, #changed, 2 do
    local entry = redis.call('HGET', use, changed[nth]) or ''
    bytes = bytes + #entry
    if nth > 1 and bytes > page_bytes then
      has_more = '1'
      break
    end
    changes[#changes + 1] = changed[nth + 1]
    changes[#changes + 1] = changed[nth]
    changes[#changes + 1] = entry
  end
end

-- The secret, without which the names of keys mean nothing, is kept for as long as the use.
local last = redis.call('ZRANGE', ends, -1, -1, 'WITHSCORES')[2]
redis.call('PEXPIRE', seen, keep)
if last then keep = math.max(keep, tonumber(last) - milliseconds + 60000) end
for _, key in ipairs({ publications, use, versions, ends }) do redis.call('PEXPIRE', key, whole(keep)) end

local hosts, news, terms = redis.call('ZRANGE', seen, 0, -1, 'WITHSCORES'), {}, {}
for nth = 1, #hosts, 2 do
  terms[#terms + 1] = redis.call('HGET', publications, 'l:' .. hosts[nth]) or ''
  if hosts[nth] ~= host and tonumber(hosts[nth + 1]) > read then
    news[#news + 1] = hosts[nth]
    news[#news + 1] = redis.call('HGET', publications, 'p:' .. hosts[nth]) or ''
  end
end
return { whole(now), secret, hosts, news, terms, epoch, whole(version), whole(restored), changes,
  { is_new and '1' or '0', has_lost and '1' or '0', has_more }, resets_version, all_resets }
