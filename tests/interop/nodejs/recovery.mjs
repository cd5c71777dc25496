// A connection that amqplib recovers by itself, cut from outside.

import amqplib from 'amqplib';

// Prints `ready`, waits for the connection to be lost and recovered, publishes and consumes again.
export async function interactive(url, name) {
  let consumed;
  const setup = async (connection) => {
    const channel = await connection.createConfirmChannel();
    await channel.assertQueue(name, { exclusive: true });
    consumed = new Promise((resolve) => {
      channel.consume(name, (message) => resolve(message.content.toString()), { noAck: true });
    });
    channel.sendToQueue(name, Buffer.from('again'));
    await channel.waitForConfirms();
  };
  const connection = await amqplib.connect(url, {
    recovery: { initialDelay: 20, maxDelay: 100, setup },
  });
  // The cut is told as an error too.
  connection.on('error', () => {});
  if ((await consumed) !== 'again') throw new Error('nothing came before the cut');
  const recovered = new Promise((resolve) => connection.once('connect', resolve));
  console.log('ready');
  await recovered;
  if ((await consumed) !== 'again') throw new Error('nothing came after the cut');
  await connection.close();
}
