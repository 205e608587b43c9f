\set user random(1, 1000)
\set cost random(200, 3000)
INSERT INTO jobs (user_id, cost, body) VALUES ('user-' || :user, :cost, repeat('x', 96));
WITH taken AS (
    UPDATE jobs SET taken_until = now() + interval '30 seconds'
     WHERE id = (SELECT id FROM jobs WHERE taken_until IS NULL
                 ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING id
)
SELECT coalesce(max(id), 0) AS id FROM taken \gset
DELETE FROM jobs WHERE id = :id;
