-- The store's clock in whole microseconds: exact in a double until the year 2255.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
