-- A queue of jobs, taken with SKIP LOCKED as the documentation of SELECT recommends.
CREATE TABLE jobs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    user_id text NOT NULL,
    cost integer NOT NULL,
    body text NOT NULL,
    taken_until timestamptz
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE INDEX jobs_waiting ON jobs (id) WHERE taken_until IS NULL;
