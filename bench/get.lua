-- wrk: GET of any of 10,000 keys, all equally likely. They must have been stored: key-000000000000 and on.
-- The requests are made once, before the run, so that wrk's own cost stays that of a GET of one key.
--
-- Arguments behind `--`, both optional: [QUERY [SEED]]
--   QUERY   put behind the key, as in '&replicas=2/3'
--   SEED    another draws the keys in another order
local KEYS = 10000
local requests = {}

function init(args)
  local query = args[1] or ""
  math.randomseed(tonumber(args[2] or 0))
  for i = 0, KEYS - 1 do
    requests[i] = wrk.format("GET", string.format("/v0/entity?id=key-%012d%s", i, query))
  end
end

function request()
  return requests[math.random(0, KEYS - 1)]
end
