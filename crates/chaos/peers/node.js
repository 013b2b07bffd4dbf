// The loop that most users of the Node driver write, and what it took.
// Arguments: URL, collection, seconds and increment of the cluster time to begin at, how many changes.
const { MongoClient, Timestamp } = require('mongodb');
const { readFileSync } = require('node:fs');

const [url, collection, seconds, increment, wanted] = process.argv.slice(2);

const cpuSeconds = () => {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
};
const megabytes = () => Number(/VmHWM:\s+(\d+)/.exec(readFileSync('/proc/self/status', 'utf8'))[1]) / 1024;

(async () => {
  const client = new MongoClient(url);
  await client.connect();
  await client.db('admin').command({ ping: 1 });
  const startAtOperationTime = new Timestamp({ t: Number(seconds), i: Number(increment) });
  const began = process.hrtime.bigint();
  const used = cpuSeconds();
  const changes = client.db().collection(collection).watch([], { startAtOperationTime });
  let count = 0;
  for await (const change of changes) {
    if (change.documentKey && ++count >= Number(wanted)) break;
  }
  const took = Number(process.hrtime.bigint() - began) / 1e9;
  const figures = { rate: count / took, cpu: ((cpuSeconds() - used) / count) * 1e6, megabytes: megabytes() };
  console.log(JSON.stringify(figures));
  process.exit(0);
})();
