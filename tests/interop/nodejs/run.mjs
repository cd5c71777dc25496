// Runs one scenario of amqplib against a broker: node run.mjs URL SCENARIO NAME
//
// The scenario gets an open connection and NAME, a name that nothing else uses at the broker. It
// passes when its promise is fulfilled. `node run.mjs --list` prints the names of all scenarios.

import amqplib from 'amqplib';

import * as scenarios from './scenarios.mjs';
import { interactive } from './recovery.mjs';

const [url, scenario, name] = process.argv.slice(2);

if (url === '--list') {
  console.log(Object.keys(scenarios).join('\n'));
} else if (scenario === 'recovery') {
  await interactive(url, name);
} else {
  const connection = await amqplib.connect(url);
  try {
    await scenarios[scenario](connection, name, url);
  } finally {
    await connection.close().catch((error) => {
      if (error.name !== 'IllegalOperationError') throw error;
    });
  }
}
