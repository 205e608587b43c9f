// An audit tail: prints decisions as they become durable, from a sequence on.
//   node clients/node/audit_tail.js 127.0.0.1:50051 0
"use strict";

const { connect } = require("./fairsched");

async function main(target, after) {
  const audit = await connect(target, "AuditService");
  let after_sequence = after;
  for (;;) {
    try {
      for await (const page of audit.WatchDecisions({ after_sequence })) {
        for (const { sequence, kind, user_id, request_id } of page.decisions) {
          console.log(sequence, kind, user_id, request_id);
        }
        after_sequence = page.scanned_sequence; // resume from here
      }
    } catch (error) {
      const UNAVAILABLE = 14;
      if (error.code !== UNAVAILABLE) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(error.message);
  process.exit(1);
});
