// What amqplib users do with a broker, each as one function of an open connection.

import assert from 'node:assert/strict';
import { once } from 'node:events';

import amqplib from 'amqplib';

const text = (message) => message.content.toString();

// An async queue of what arrives in callbacks.
function inbox() {
  const arrived = [];
  const waiting = [];
  return {
    arrived,
    push(value) {
      if (waiting.length > 0) waiting.shift()(value);
      else arrived.push(value);
    },
    next() {
      if (arrived.length > 0) return Promise.resolve(arrived.shift());
      return new Promise((resolve) => waiting.push(resolve));
    },
    async take(count) {
      const values = [];
      while (values.length < count) values.push(await this.next());
      return values;
    },
  };
}

// Takes all that is in the queue.
async function drain(channel, queue) {
  const bodies = [];
  for (;;) {
    const message = await channel.get(queue, { noAck: true });
    if (message === false) return bodies;
    bodies.push(text(message));
  }
}

// The error that closes the channel of a failing call.
async function closedBy(channel, call) {
  const error = once(channel, 'error');
  await assert.rejects(call);
  return (await error)[0];
}

export async function confirmChannelConfirmsEveryMessage(connection, name) {
  const channel = await connection.createConfirmChannel();
  await channel.assertQueue(name, { exclusive: true });
  let confirmed = 0;
  for (let number = 0; number < 1000; number += 1) {
    channel.sendToQueue(name, Buffer.from(`${number}`), { persistent: true }, (error) => {
      assert.equal(error, null);
      confirmed += 1;
    });
  }
  await channel.waitForConfirms();
  assert.equal(confirmed, 1000);
  assert.deepEqual(await channel.checkQueue(name), {
    queue: name,
    messageCount: 1000,
    consumerCount: 0,
  });
}

export async function confirmIsNegativeWhenAFullQueueRejects(connection, name) {
  const channel = await connection.createConfirmChannel();
  await channel.assertQueue(name, {
    exclusive: true,
    maxLength: 1,
    arguments: { 'x-overflow': 'reject-publish' },
  });
  channel.sendToQueue(name, Buffer.from('first'));
  await channel.waitForConfirms();
  channel.sendToQueue(name, Buffer.from('second'));
  await assert.rejects(channel.waitForConfirms(), /nacked/);
  assert.deepEqual(await drain(channel, name), ['first']);
}

export async function consumeAcknowledgeAndNack(connection, name) {
  const channel = await connection.createChannel();
  await channel.assertQueue(name, { exclusive: true });
  await channel.prefetch(2);
  const received = inbox();
  await channel.consume(name, (message) => received.push(message));
  for (const body of ['a', 'b', 'c']) channel.sendToQueue(name, Buffer.from(body));
  const [a, b] = await received.take(2);
  assert.deepEqual([text(a), text(b)], ['a', 'b']);
  // Two are unacknowledged and that is the limit: the third waits in the queue.
  assert.equal((await channel.checkQueue(name)).messageCount, 1);
  assert.equal(received.arrived.length, 0);
  channel.nack(a, false, true);
  const again = await received.next();
  assert.equal(text(again), 'a');
  assert.equal(again.fields.redelivered, true);
  channel.ack(again);
  const c = await received.next();
  assert.equal(text(c), 'c');
  assert.equal(c.fields.redelivered, false);
  channel.ackAll();
  assert.equal((await channel.checkQueue(name)).messageCount, 0);
}

export async function nackAllDropsOrRequeues(connection, name) {
  const channel = await connection.createChannel();
  await channel.assertQueue(name, { exclusive: true });
  for (const body of ['a', 'b', 'c']) channel.sendToQueue(name, Buffer.from(body));
  for (let count = 0; count < 3; count += 1) await channel.get(name);
  channel.nackAll(true);
  assert.deepEqual(await drain(channel, name), ['a', 'b', 'c']);
  channel.sendToQueue(name, Buffer.from('d'));
  await channel.get(name);
  channel.nackAll(false);
  assert.deepEqual(await drain(channel, name), []);
}

export async function rejectedMessagesAreDeadLettered(connection, name) {
  const channel = await connection.createChannel();
  await channel.assertExchange(`${name}.dlx`, 'topic', { autoDelete: true });
  await channel.assertQueue(`${name}.dead`, { exclusive: true });
  await channel.bindQueue(`${name}.dead`, `${name}.dlx`, 'dead.#');
  await channel.assertQueue(name, {
    exclusive: true,
    deadLetterExchange: `${name}.dlx`,
    deadLetterRoutingKey: 'dead.letter',
  });
  const dead = inbox();
  await channel.consume(`${name}.dead`, (message) => dead.push(message), { noAck: true });
  await channel.consume(name, (message) => channel.reject(message, false));
  channel.sendToQueue(name, Buffer.from('unwanted'), { headers: { kept: 'yes' } });
  const message = await dead.next();
  assert.equal(text(message), 'unwanted');
  assert.equal(message.fields.exchange, `${name}.dlx`);
  assert.equal(message.fields.routingKey, 'dead.letter');
  const { headers } = message.properties;
  assert.equal(headers.kept, 'yes');
  assert.equal(headers['x-first-death-queue'], name);
  assert.equal(headers['x-first-death-reason'], 'rejected');
  assert.equal(headers['x-first-death-exchange'], '');
  const [death] = headers['x-death'];
  assert.deepEqual(
    [death.queue, death.reason, death.exchange, death['routing-keys'], Number(death.count)],
    [name, 'rejected', '', [name], 1],
  );
}

export async function expiredMessagesAreDeadLettered(connection, name) {
  const channel = await connection.createChannel();
  await channel.assertQueue(`${name}.dead`, { exclusive: true });
  await channel.assertQueue(name, {
    exclusive: true,
    messageTtl: 30,
    deadLetterExchange: '',
    deadLetterRoutingKey: `${name}.dead`,
  });
  const dead = inbox();
  await channel.consume(`${name}.dead`, (message) => dead.push(message), { noAck: true });
  channel.sendToQueue(name, Buffer.from('queue limit'));
  channel.sendToQueue(name, Buffer.from('own limit'), { expiration: 20 });
  const messages = await dead.take(2);
  assert.deepEqual(messages.map(text).sort(), ['own limit', 'queue limit']);
  for (const message of messages) {
    assert.equal(message.properties.headers['x-death'][0].reason, 'expired');
    assert.equal(message.properties.expiration, undefined);
  }
}

export async function exchangesAreBoundToExchanges(connection, name) {
  const channel = await connection.createChannel();
  const [source, target] = [`${name}.source`, `${name}.target`];
  await channel.assertExchange(source, 'topic', { autoDelete: true });
  await channel.assertExchange(target, 'fanout', { autoDelete: true, internal: true });
  await channel.assertQueue(name, { exclusive: true });
  await channel.bindQueue(name, target, '');
  await channel.bindExchange(target, source, '*.error');
  channel.publish(source, 'disk.error', Buffer.from('bound'));
  channel.publish(source, 'disk.info', Buffer.from('other key'));
  assert.deepEqual(await drain(channel, name), ['bound']);
  await channel.unbindExchange(target, source, '*.error');
}

export async function unroutableMandatoryMessagesAreReturned(connection, name) {
  const channel = await connection.createConfirmChannel();
  const order = [];
  channel.on('return', (message) => order.push(message));
  await new Promise((resolve) => {
    channel.publish('amq.direct', name, Buffer.from('nobody'), { mandatory: true }, (error) => {
      assert.equal(error, null);
      order.push('confirmed');
      resolve();
    });
  });
  const [returned, confirmed] = order;
  assert.equal(text(returned), 'nobody');
  assert.equal(returned.fields.replyCode, 312);
  assert.equal(returned.fields.replyText, 'NO_ROUTE');
  assert.equal(returned.fields.exchange, 'amq.direct');
  assert.equal(returned.fields.routingKey, name);
  assert.equal(confirmed, 'confirmed');
}

export async function consumersAreCancelledWhenTheQueueGoes(connection, name) {
  const channel = await connection.createChannel();
  const other = await connection.createChannel();
  await channel.assertQueue(name);
  const received = inbox();
  await channel.consume(name, (message) => received.push(message));
  await other.deleteQueue(name);
  // amqplib hands null to a consumer that the server cancelled.
  assert.equal(await received.next(), null);
  await channel.assertQueue(`${name}.next`, { exclusive: true });
}

export async function cancelledConsumersGetNothingMore(connection, name) {
  const channel = await connection.createChannel();
  await channel.assertQueue(name, { exclusive: true });
  const received = inbox();
  const { consumerTag } = await channel.consume(name, (message) => received.push(message), {
    noAck: true,
  });
  channel.sendToQueue(name, Buffer.from('before'));
  assert.equal(text(await received.next()), 'before');
  assert.deepEqual(await channel.cancel(consumerTag), { consumerTag });
  channel.sendToQueue(name, Buffer.from('after'));
  assert.deepEqual(await drain(channel, name), ['after']);
  assert.equal(received.arrived.length, 0);
}

export async function alternateExchangesGetWhatIsNotRouted(connection, name) {
  const channel = await connection.createChannel();
  await channel.assertExchange(`${name}.spare`, 'fanout', { autoDelete: true });
  await channel.assertExchange(name, 'direct', {
    autoDelete: true,
    alternateExchange: `${name}.spare`,
  });
  await channel.assertQueue(`${name}.found`, { exclusive: true });
  await channel.assertQueue(`${name}.lost`, { exclusive: true });
  await channel.bindQueue(`${name}.found`, name, 'known');
  await channel.bindQueue(`${name}.lost`, `${name}.spare`, '');
  const returned = [];
  channel.on('return', (message) => returned.push(message));
  channel.publish(name, 'known', Buffer.from('one'), { mandatory: true });
  channel.publish(name, 'unknown', Buffer.from('two'), { mandatory: true });
  assert.deepEqual(await drain(channel, `${name}.found`), ['one']);
  const message = await channel.get(`${name}.lost`, { noAck: true });
  assert.equal(text(message), 'two');
  assert.equal(message.fields.exchange, name);
  assert.equal(message.fields.routingKey, 'unknown');
  assert.deepEqual(returned, []);
}

export async function remoteCallsWithDirectReplyTo(connection, name, url) {
  const serverConnection = await amqplib.connect(url);
  const server = await serverConnection.createChannel();
  await server.assertQueue(name, { exclusive: true });
  await server.consume(name, (request) => {
    const { replyTo, correlationId } = request.properties;
    assert.match(replyTo, /^amq\.rabbitmq\.reply-to\./);
    server.publish('', replyTo, Buffer.from(`${Number(text(request)) ** 2}`), { correlationId });
    server.ack(request);
  });
  const channel = await connection.createChannel();
  const replies = inbox();
  await channel.consume('amq.rabbitmq.reply-to', (message) => replies.push(message), {
    noAck: true,
  });
  for (let number = 0; number < 5; number += 1) {
    channel.sendToQueue(name, Buffer.from(`${number}`), {
      replyTo: 'amq.rabbitmq.reply-to',
      correlationId: `${number}`,
    });
  }
  const answers = await replies.take(5);
  assert.deepEqual(answers.map(text), ['0', '1', '4', '9', '16']);
  assert.deepEqual(
    answers.map((answer) => answer.properties.correlationId),
    ['0', '1', '2', '3', '4'],
  );
  await serverConnection.close();
}

export async function directReplyToNeedsAConsumerFirst(connection, name) {
  const channel = await connection.createChannel();
  const error = once(channel, 'error');
  channel.sendToQueue(name, Buffer.from('?'), { replyTo: 'amq.rabbitmq.reply-to' });
  assert.equal((await error)[0].code, 406);
}

export async function headersExchangesMatchAllOrAny(connection, name) {
  const channel = await connection.createChannel();
  await channel.assertExchange(name, 'headers', { autoDelete: true });
  for (const match of ['all', 'any']) {
    await channel.assertQueue(`${name}.${match}`, { exclusive: true });
    await channel.bindQueue(`${name}.${match}`, name, '', { 'x-match': match, a: 1, b: true });
  }
  channel.publish(name, '', Buffer.from('both'), { headers: { a: 1, b: true } });
  channel.publish(name, '', Buffer.from('one'), { headers: { a: 1, b: false } });
  channel.publish(name, '', Buffer.from('none'), { headers: { a: 2 } });
  assert.deepEqual(await drain(channel, `${name}.all`), ['both']);
  assert.deepEqual(await drain(channel, `${name}.any`), ['both', 'one']);
}

export async function prioritiesOfMessagesAndConsumersCount(connection, name) {
  const channel = await connection.createChannel();
  await channel.assertQueue(name, { exclusive: true, maxPriority: 5 });
  const order = [
    ['low', 0],
    ['high', 5],
    ['middle', 3],
    ['also high', 9],
  ];
  for (const [body, priority] of order) {
    channel.sendToQueue(name, Buffer.from(body), { priority });
  }
  assert.deepEqual(await drain(channel, name), ['high', 'also high', 'middle', 'low']);
  const received = [];
  const done = inbox();
  for (const priority of [0, 10]) {
    await channel.consume(
      name,
      (message) => {
        received.push(priority);
        done.push(message);
      },
      { priority, noAck: true },
    );
  }
  for (let count = 0; count < 10; count += 1) channel.sendToQueue(name, Buffer.from('x'));
  await done.take(10);
  assert.deepEqual(new Set(received), new Set([10]));
}

export async function carbonCopiesAreRouted(connection, name) {
  const channel = await connection.createChannel();
  for (const part of ['to', 'cc', 'bcc']) {
    await channel.assertQueue(`${name}.${part}`, { exclusive: true });
  }
  channel.publish('', `${name}.to`, Buffer.from('all'), {
    CC: [`${name}.cc`],
    BCC: [`${name}.bcc`],
  });
  for (const part of ['to', 'cc', 'bcc']) {
    const message = await channel.get(`${name}.${part}`, { noAck: true });
    assert.equal(text(message), 'all');
    assert.deepEqual(message.properties.headers.CC, [`${name}.cc`]);
    assert.equal('BCC' in message.properties.headers, false);
  }
}

export async function propertiesAndHeadersComeBack(connection, name) {
  const channel = await connection.createChannel();
  await channel.assertQueue(name, { exclusive: true });
  const headers = {
    text: 'grüße',
    flag: true,
    number: 7,
    negative: -1,
    large: 2 ** 40,
    double: 1.5,
    nothing: null,
    list: [1, 'two', { three: [3] }],
    table: { deep: { deeper: false } },
    octets: Buffer.from([0, 255]),
  };
  const options = {
    contentType: 'text/plain',
    contentEncoding: 'utf-8',
    headers,
    deliveryMode: 2,
    priority: 3,
    correlationId: 'c',
    replyTo: 'r',
    expiration: '60000',
    messageId: 'm',
    timestamp: 1_700_000_000,
    type: 't',
    userId: 'guest',
    appId: 'a',
  };
  const body = Buffer.alloc(500_000, 'x');
  channel.sendToQueue(name, body, options);
  const message = await channel.get(name, { noAck: true });
  assert.equal(Buffer.compare(message.content, body), 0);
  for (const [property, value] of Object.entries(options)) {
    if (property !== 'headers') assert.equal(message.properties[property], value, property);
  }
  assert.deepEqual({ ...message.properties.headers }, headers);
}

export async function errorsCloseTheChannelWithTheirCode(connection, name) {
  const missing = await connection.createChannel();
  assert.equal((await closedBy(missing, missing.checkQueue(name))).code, 404);
  const owner = await connection.createChannel();
  await owner.assertQueue(name, { exclusive: true });
  const other = await connection.createChannel();
  const unequal = other.assertQueue(name, { exclusive: true, maxLength: 3 });
  assert.equal((await closedBy(other, unequal)).code, 406);
  assert.equal((await owner.checkQueue(name)).messageCount, 0);
}

export async function exclusiveQueuesAreLockedToOthers(connection, name, url) {
  const channel = await connection.createChannel();
  await channel.assertQueue(name, { exclusive: true });
  const otherConnection = await amqplib.connect(url);
  const other = await otherConnection.createChannel();
  assert.equal((await closedBy(other, other.checkQueue(name))).code, 405);
  await otherConnection.close();
}

export async function purgeAndDeleteSayHowMany(connection, name) {
  const channel = await connection.createConfirmChannel();
  await channel.assertQueue(name);
  for (let count = 0; count < 3; count += 1) channel.sendToQueue(name, Buffer.from('x'));
  await channel.waitForConfirms();
  assert.deepEqual(await channel.purgeQueue(name), { messageCount: 3 });
  channel.sendToQueue(name, Buffer.from('x'));
  await channel.waitForConfirms();
  assert.deepEqual(await channel.deleteQueue(name), { messageCount: 1 });
}

export async function recoverRedeliversWhatIsUnacknowledged(connection, name) {
  const channel = await connection.createChannel();
  await channel.assertQueue(name, { exclusive: true });
  channel.sendToQueue(name, Buffer.from('again'));
  assert.notEqual(await channel.get(name), false);
  await channel.recover();
  const message = await channel.get(name, { noAck: true });
  assert.equal(text(message), 'again');
  assert.equal(message.fields.redelivered, true);
}

export async function secretsAreUpdated(connection, name) {
  await connection.updateSecret(Buffer.from('a token of another day'), 'rotation');
  const channel = await connection.createChannel();
  await channel.assertQueue(name, { exclusive: true });
}
