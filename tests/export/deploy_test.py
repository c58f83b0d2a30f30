"""Tests for the Kubernetes manifests and the Docker image of export/deploy."""

import pathlib
import re
import shlex

import tensorflow as tf
import yaml
from absl.testing import parameterized

from bert_tf.export import model_card
from bert_tf.flags import cli
from bert_tf.flags.serve import ServeConfig

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_FOLDER = _ROOT / "export" / "deploy"
_SERVERS = ("tensorflow_serving", "embedded_server")


def _read(name):
    text = (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    documents = {}
    for document in yaml.safe_load_all(text):
        key = (document["kind"], document["metadata"]["name"])
        documents[key] = document
    return documents


def _serve_flags(words):
    """Returns the configuration for flags of run/serve.py."""
    values = cli.flags.FlagValues()
    read = cli.define_flags(ServeConfig, values)
    values(["run/serve.py", *words])
    return read()


class ManifestsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*_SERVERS)
    def test_selectors_match_the_labels_of_pods(self, name):
        documents = _read(name)
        spec = documents["Deployment", "bert"]["spec"]
        labels = spec["template"]["metadata"]["labels"]
        self.assertEqual(spec["selector"]["matchLabels"], labels)
        for service in ("bert", "bert-pods"):
            found = documents["Service", service]["spec"]["selector"]
            self.assertEqual(found, labels)
        self.assertEqual(
            documents["Service", "bert-pods"]["spec"]["clusterIP"], "None"
        )

    @parameterized.parameters(*_SERVERS)
    def test_ports_are_those_of_the_servers(self, name):
        documents = _read(name)
        (container,) = _pod(documents)["containers"]
        ports = {x["name"]: x["containerPort"] for x in container["ports"]}
        self.assertEqual(
            ports, {"grpc": model_card.GRPC_PORT, "rest": model_card.REST_PORT}
        )
        for service in ("bert", "bert-pods"):
            for port in documents["Service", service]["spec"]["ports"]:
                self.assertEqual(port["port"], ports[port["targetPort"]])

    @parameterized.parameters(*_SERVERS)
    def test_probes_request_the_status_of_the_model(self, name):
        (container,) = _pod(_read(name))["containers"]
        ready = "/v1/models/bert"
        if name == "embedded_server":
            ready = "/readyz"
        for probe, path in (
            ("startupProbe", ready),
            ("readinessProbe", ready),
            ("livenessProbe", "/v1/models/bert"),
        ):
            request = container[probe]["httpGet"]
            self.assertEqual(request, {"path": path, "port": "rest"})

    @parameterized.parameters(*_SERVERS)
    def test_autoscaler_targets_the_deployment(self, name):
        documents = _read(name)
        spec = documents["HorizontalPodAutoscaler", "bert"]["spec"]
        target = spec["scaleTargetRef"]
        self.assertEqual(
            (target["kind"], target["name"]), ("Deployment", "bert")
        )
        self.assertLess(spec["minReplicas"], spec["maxReplicas"])
        deployment = documents["Deployment", "bert"]
        # Both would set the number of replicas.
        self.assertNotIn("replicas", deployment["spec"])
        (container,) = _pod(documents)["containers"]
        # Utilization is a share of the requested resources.
        self.assertIn("cpu", container["resources"]["requests"])

    @parameterized.parameters(*_SERVERS)
    def test_model_path_is_mounted(self, name):
        pod = _pod(_read(name))
        (container,) = pod["containers"]
        (mount,) = container["volumeMounts"]
        (volume,) = pod["volumes"]
        self.assertEqual(mount["name"], volume["name"])
        for word in container["args"]:
            if "=/" in word:
                path = word.partition("=")[2]
                self.assertTrue(path.startswith(f"{mount['mountPath']}/bert"))

    def test_image_is_that_of_the_usage_instructions(self):
        (container,) = _pod(_read("tensorflow_serving"))["containers"]
        self.assertEqual(container["image"], model_card.IMAGE)
        files = [word.rpartition("/")[2] for word in container["args"]]
        self.assertIn(model_card.CONFIG_FILE, files)
        self.assertIn(model_card.BATCHING_FILE, files)

    def test_flags_of_the_embedded_server_parse(self):
        (container,) = _pod(_read("embedded_server"))["containers"]
        config = _serve_flags(_entry_point() + container["args"])
        self.assertEqual(config.model_base_path, "/models/bert")
        # On localhost, other pods could not connect.
        self.assertEqual(config.host, "0.0.0.0")
        self.assertEqual(config.port, model_card.GRPC_PORT)
        self.assertEqual(config.rest_api_port, model_card.REST_PORT)


class DockerTest(tf.test.TestCase):
    def test_copies_existing_files_of_the_build_context(self):
        sources = []
        for line in _dockerfile().splitlines():
            if line.startswith("COPY "):
                sources += line.split()[1:-1]
        self.assertIn("requirements.in", sources)
        ignored = (_FOLDER / "Dockerfile.dockerignore").read_text("utf-8")
        sent = re.findall(r"(?m)^!(.+)$", ignored)
        self.assertCountEqual(sources, sent)
        for source in sources:
            self.assertTrue((_ROOT / source).exists(), source)

    def test_runs_the_server(self):
        self.assertTrue((_ROOT / "run" / "serve.py").exists())
        self.assertIn('"python", "run/serve.py"', _dockerfile())

    def test_commands_of_the_readme_have_valid_flags(self):
        readme = (_FOLDER / "README.md").read_text(encoding="utf-8")
        (line,) = re.findall(r"(?m)^python run/serve.py (.*)$", readme)
        config = _serve_flags(shlex.split(line))
        self.assertEqual(config.rest_api_port, model_card.REST_PORT)
        self.assertIn(model_card.IMAGE, readme)
        for file in _FOLDER.iterdir():
            if file.suffix == ".yaml" or file.name == "Dockerfile":
                self.assertIn(f"`{file.name}`", readme)


def _pod(documents):
    return documents["Deployment", "bert"]["spec"]["template"]["spec"]


def _dockerfile():
    return (_FOLDER / "Dockerfile").read_text(encoding="utf-8")


def _entry_point():
    """Returns the server flags in the Dockerfile."""
    (line,) = re.findall(r"(?m)^ENTRYPOINT \[(.*)\]$", _dockerfile())
    words = [word.strip('"') for word in line.split(", ")]
    return words[2:]


if __name__ == "__main__":
    tf.test.main()
