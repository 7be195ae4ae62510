// Custom resources against the schemas of their CRDs, by the packages of @kubernetes-models. Reads a JSON list of
// objects from standard input, runs in the folder with node_modules, and prints one line for each that is wrong.
import { pathToFileURL } from "node:url";

const PACKAGES = {
  "monitoring.coreos.com": "prometheus-operator",
  "keda.sh": "keda",
  "gateway.networking.k8s.io": "gateway-api",
};

let text = "";
for await (const chunk of process.stdin) text += chunk;
for (const object of JSON.parse(text)) {
  const [group, version] = object.apiVersion.split("/");
  const folder = `${process.cwd()}/node_modules/@kubernetes-models/${PACKAGES[group]}`;
  try {
    const module = await import(pathToFileURL(`${folder}/${group}/${version}/${object.kind}.js`).href);
    new module[object.kind](object).validate();
  } catch (error) {
    console.log(`${object.kind}/${object.metadata?.name}: ${error.message}`);
  }
}
