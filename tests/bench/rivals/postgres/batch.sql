\set cost random(200, 3000)
INSERT INTO jobs (user_id, cost, body)
SELECT 'user-' || (random() * 1000)::int, :cost, repeat('x', 96) FROM generate_series(1, :batch);
WITH next AS (
    SELECT id FROM jobs WHERE taken_until IS NULL ORDER BY id LIMIT :batch FOR UPDATE SKIP LOCKED
), taken AS (
    UPDATE jobs SET taken_until = now() + interval '30 seconds'
    FROM next WHERE jobs.id = next.id RETURNING jobs.id
)
SELECT coalesce(array_agg(id), '{}')::text AS ids FROM taken \gset
DELETE FROM jobs WHERE id = ANY (:ids::bigint[]);
